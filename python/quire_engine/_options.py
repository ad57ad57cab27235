"""Options of the program, as tools/make_python_options.py wrote them."""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

# The flag, what it takes (bool: nothing), and the flag for False.
OPTIONS: dict[str, tuple[str, str, str]] = {
    "device": ("--device", "str", ""),
    "gpu": ("--gpu", "int", ""),
    "threads": ("--threads", "int", ""),
    "kernel": ("--kernel", "str", ""),
    "pipeline_parallel_size": ("--pipeline-parallel-size", "int", ""),
    "pp_size": ("--pipeline-parallel-size", "int", ""),
    "tensor_split": ("--tensor-split", "str", ""),
    "gpu_memory_utilization": ("--gpu-memory-utilization", "float", ""),
    "kv_cache_dtype": ("--kv-cache-dtype", "str", ""),
    "arithmetic": ("--arithmetic", "str", ""),
    "activations": ("--activations", "str", ""),
    "depth": ("--depth", "int", ""),
    "no_graphs": ("--no-graphs", "bool", ""),
    "speculative": ("--speculative", "str", ""),
    "speculative_tokens": ("--speculative-tokens", "int", ""),
    "speculative_config": ("--speculative-config", "str", ""),
    "card_costs": ("--card-costs", "path", ""),
    "data_parallel_size": ("--data-parallel-size", "int", ""),
    "dp_size": ("--data-parallel-size", "int", ""),
    "gpus": ("--gpus", "str", ""),
    "mtp": ("--mtp", "path", ""),
    "mmproj": ("--mmproj", "path", ""),
    "no_mmproj": ("--no-mmproj", "bool", ""),
    "image_max_pixels": ("--image-max-pixels", "int", ""),
    "pan_and_scan": ("--pan-and-scan", "bool", ""),
    "served_model_name": ("--served-model-name", "str", ""),
    "alias": ("--served-model-name", "str", ""),
    "max_model_len": ("--max-model-len", "int", ""),
    "ctx_size": ("--max-model-len", "int", ""),
    "rope_scaling": ("--rope-scaling", "str", ""),
    "rope_scale": ("--rope-scale", "float", ""),
    "yarn_orig_ctx": ("--yarn-orig-ctx", "int", ""),
    "yarn_attn_factor": ("--yarn-attn-factor", "float", ""),
    "yarn_ext_factor": ("--yarn-ext-factor", "float", ""),
    "yarn_beta_fast": ("--yarn-beta-fast", "float", ""),
    "yarn_beta_slow": ("--yarn-beta-slow", "float", ""),
    "max_num_seqs": ("--max-num-seqs", "int", ""),
    "parallel": ("--max-num-seqs", "int", ""),
    "max_num_batched_tokens": ("--max-num-batched-tokens", "int", ""),
    "batch_size": ("--max-num-batched-tokens", "int", ""),
    "pooling": ("--pooling", "str", ""),
    "no_repack": ("--no-repack", "bool", ""),
    "kv_tokens": ("--kv-tokens", "int", ""),
    "enable_prefix_caching": ("--enable-prefix-caching", "bool", "--no-enable-prefix-caching"),
    "swap_space": ("--swap-space", "float", ""),
    "kv_offloading_size": ("--kv-offloading-size", "float", ""),
    "first_token_first": ("--first-token-first", "int", ""),
    "prefix_cache_file": ("--prefix-cache-file", "path", ""),
    "prefix_cache_file_size": ("--prefix-cache-file-size", "float", ""),
    "system_headers": ("--system-headers", "str", ""),
    "special_tokens_in_content": ("--special-tokens-in-content", "bool", ""),
    "generation_config": ("--generation-config", "path", ""),
    "max_output_tokens": ("--max-output-tokens", "int", ""),
    "predict": ("--max-output-tokens", "int", ""),
    "n_predict": ("--max-output-tokens", "int", ""),
    "reasoning_format": ("--reasoning-format", "str", ""),
    "additional_properties": ("--additional-properties", "bool", ""),
    "tool_call_parser": ("--tool-call-parser", "str", ""),
    "chat_template": ("--chat-template", "path", ""),
    "chat_template_file": ("--chat-template", "path", ""),
    "allowed_media_domains": ("--allowed-media-domains", "str", ""),
    "allowed_local_media_path": ("--allowed-local-media-path", "path", ""),
    "media_ca": ("--media-ca", "path", ""),
    "http_threads": ("--http-threads", "int", ""),
    "threads_http": ("--http-threads", "int", ""),
    "tokenizer_threads": ("--tokenizer-threads", "int", ""),
    "trace_steps": ("--trace-steps", "path", ""),
    "kv_events_endpoint": ("--kv-events-endpoint", "str", ""),
    "kv_events_replay_endpoint": ("--kv-events-replay-endpoint", "str", ""),
    "kv_events_topic": ("--kv-events-topic", "str", ""),
    "kv_events_buffer_steps": ("--kv-events-buffer-steps", "int", ""),
    "kv_events_format": ("--kv-events-format", "str", ""),
    "kv_events_token_ids": ("--kv-events-token-ids", "bool", ""),
    "max_queue": ("--max-queue", "int", ""),
    "max_body_bytes": ("--max-body-bytes", "int", ""),
    "max_priority": ("--max-priority", "int", ""),
    "max_logprobs": ("--max-logprobs", "int", ""),
    "strict_parameters": ("--strict-parameters", "bool", ""),
    "limits": ("--limits", "path", ""),
    "request_timeout": ("--request-timeout", "float", ""),
    "drain_timeout": ("--drain-timeout", "float", ""),
    "hub_cache": ("--hub-cache", "path", ""),
    "revision": ("--revision", "str", ""),
    "offline": ("--offline", "bool", ""),
    "hub": ("--hub", "str", ""),
    "token_file": ("--token-file", "path", ""),
    "hub_ca": ("--hub-ca", "path", ""),
    "hub_connections": ("--hub-connections", "int", ""),
}


class Options(TypedDict, total=False):
    """What `quire serve` takes, by the same names; `quire help serve` says what each means."""

    device: Literal["auto", "cpu", "cuda", "reference"]
    gpu: int
    threads: int
    kernel: str | Sequence[str]
    pipeline_parallel_size: int
    pp_size: int
    tensor_split: str
    gpu_memory_utilization: float
    kv_cache_dtype: Literal["auto", "bf16", "fp8"]
    arithmetic: Literal["auto", "latency", "throughput"]
    activations: Literal["auto", "bf16", "fp8", "fp4"]
    depth: int
    no_graphs: bool
    speculative: Literal["auto", "off", "mtp", "lookup"]
    speculative_tokens: int
    speculative_config: str
    card_costs: str | os.PathLike[str]
    data_parallel_size: int
    dp_size: int
    gpus: str
    mtp: str | os.PathLike[str]
    mmproj: str | os.PathLike[str]
    no_mmproj: bool
    image_max_pixels: int
    pan_and_scan: bool
    served_model_name: str | Sequence[str]
    alias: str | Sequence[str]
    max_model_len: int
    ctx_size: int
    rope_scaling: Literal["none", "linear", "yarn"]
    rope_scale: float
    yarn_orig_ctx: int
    yarn_attn_factor: float
    yarn_ext_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    max_num_seqs: int
    parallel: int
    max_num_batched_tokens: int
    batch_size: int
    pooling: Literal["last", "mean"]
    no_repack: bool
    kv_tokens: int
    enable_prefix_caching: bool
    swap_space: float
    kv_offloading_size: float
    first_token_first: int
    prefix_cache_file: str | os.PathLike[str]
    prefix_cache_file_size: float
    system_headers: str | Sequence[str]
    special_tokens_in_content: bool
    generation_config: str | os.PathLike[str]
    max_output_tokens: int
    predict: int
    n_predict: int
    reasoning_format: Literal["auto", "none"]
    additional_properties: bool
    tool_call_parser: Literal["auto", "harmony", "qwen3_xml", "hermes", "mistral", "llama3_json", "json"]
    chat_template: str | os.PathLike[str]
    chat_template_file: str | os.PathLike[str]
    allowed_media_domains: str
    allowed_local_media_path: str | os.PathLike[str]
    media_ca: str | os.PathLike[str]
    http_threads: int
    threads_http: int
    tokenizer_threads: int
    trace_steps: str | os.PathLike[str]
    kv_events_endpoint: str
    kv_events_replay_endpoint: str
    kv_events_topic: str
    kv_events_buffer_steps: int
    kv_events_format: Literal["arrays", "tagged", "maps"]
    kv_events_token_ids: bool
    max_queue: int
    max_body_bytes: int
    max_priority: int
    max_logprobs: int
    strict_parameters: bool
    limits: str | os.PathLike[str] | Mapping[str, float]
    request_timeout: float
    drain_timeout: float
    hub_cache: str | os.PathLike[str]
    revision: str
    offline: bool
    hub: str
    token_file: str | os.PathLike[str]
    hub_ca: str | os.PathLike[str]
    hub_connections: int
