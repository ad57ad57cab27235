"""A model for lm-evaluation-harness, without a server of one's own.

    import lm_eval
    from quire_engine.lm_eval import QuireLM
    lm_eval.simple_evaluate(model=QuireLM("model.gguf"), tasks=["hellaswag"])

or, where this module is imported before, `--model quire --model_args model=model.gguf`.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from .llm import LLM
from .outputs import RequestOutput
from .params import SamplingParams


@register_model("quire")
class QuireLM(TemplateLM):  # type: ignore[misc, unused-ignore]
    """`options` are those of LLM."""

    def __init__(self, model: str, max_gen_toks: int = 256, max_length: int | None = None, batch_size: Any = None,
                 max_batch_size: Any = None, device: str | None = None, **options: Any) -> None:
        super().__init__()
        if device is not None:
            options["device"] = device
        self.llm = LLM(model, **options)
        self.max_length = max_length or self.llm.max_model_len
        self.max_gen_toks = max_gen_toks
        props = self.llm.props()
        self._eos = props["eos_token"] or ""
        self._end: int = self.llm.tokenize(props["bos_token"] or self._eos, add_special_tokens=False)[0]
        self._name = model

    @property
    def eot_token_id(self) -> int:
        """What stands before a text that has nothing before it."""
        return self._end

    @property
    def tokenizer_name(self) -> str:
        return self._name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return self.llm.tokenize(string, add_special_tokens=bool(add_special_tokens))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        body = {"messages": chat_history, "add_generation_prompt": add_generation_prompt,
                "continue_final_message": not add_generation_prompt}
        return self.llm.detokenize(self.llm._value("/tokenize", body)["tokens"])

    def _loglikelihood_tokens(self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False,
                              **_: Any) -> list[tuple[float, bool]]:
        prompts = []
        for _texts, before, after in requests:
            # Log-probabilities need room for one token less than there are.
            prompts.append((before + after)[-self.max_length:])
        asked = SamplingParams(max_tokens=0, prompt_logprobs=0)
        outputs = self.llm.generate(prompts, asked, use_tqdm=not disable_tqdm) if prompts else []
        return [self._sum(output, len(after)) for output, (_texts, _before, after) in zip(outputs, requests)]

    @staticmethod
    def _sum(output: RequestOutput, count: int) -> tuple[float, bool]:
        """The log-probability of a prompt's last tokens, and whether each was the likeliest one."""
        entries = (output.prompt_logprobs or [])[-count:]
        told = [entry[token] for entry, token in zip(entries, output.prompt_token_ids[-count:]) if entry is not None]
        return sum(one.logprob for one in told), all(one.rank == 1 for one in told)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        windows: list[tuple[Any, list[int], list[int]]] = []
        counts = []
        for (text,) in [r.args for r in requests]:
            rolled = [make_disjoint_window(w) for w in get_rolling_token_windows(
                token_list=self.tok_encode(text), prefix_token=self.prefix_token_id, max_seq_len=self.max_length - 1,
                context_len=1)]
            windows += [(None, list(before), list(after)) for before, after in rolled]
            counts.append(len(rolled))
        each = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        return [sum(next(each)[0] for _ in range(count)) for count in counts]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        prompts: list[list[int]] = []
        params: list[SamplingParams] = []
        for context, given in [r.args for r in requests]:
            kwargs = dict(given)
            stops = [s for s in handle_stop_sequences(kwargs.pop("until", None), eos=self._eos) if s]
            most = int(kwargs.get("max_gen_toks", self.max_gen_toks))
            greedy = not kwargs.get("do_sample", kwargs.get("temperature", 0) > 0)
            tokens = self.tok_encode(context)
            prompts.append(tokens[-max(self.max_length - most, 1):])
            params.append(SamplingParams(max_tokens=most, stop=stops, top_p=kwargs.get("top_p"),
                                         temperature=0.0 if greedy else kwargs.get("temperature")))
        outputs = self.llm.generate(prompts, params, use_tqdm=not disable_tqdm) if prompts else []
        return [output.outputs[0].text for output in outputs]
