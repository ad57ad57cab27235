// What the engine takes: checks of requests, and their way into the queue.
#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "engine/picture_keys.h"

namespace quire {
namespace {

// An embedding's request is a prompt alone, to everybody who asks what it may come to generate.
void ignore_generation(Request& r) {
  r.max_tokens = r.min_tokens = 0;
  r.sampling = {};
  r.stop.clear();
  r.stop_tokens.clear();
  r.prompt_logprobs = -1;
  r.constraint = nullptr;
}

// Pictures one after the other, each with the tokens that stand for it and with as many patches as these.
Status check_images(const PromptImages& images, const Request& r, const LoadedModel& model, const EncoderRoom& room) {
  if (images.empty()) return {};
  if (!room.any()) return request_error("this engine takes no images");
  const LoadedVision& vision = *model.vision;
  const VisionConfig& c = vision.tower->config();
  int64_t last = 0;
  for (size_t i = 0; i < images.size(); ++i) {
    const PromptImage& image = images[i];
    const auto wrong = [&](std::string_view what) { return request_error("image {}: {}", i, what); };
    if (image.rows < 1 || image.columns < 1 || image.position < last || image.end() > std::ssize(r.prompt))
      return wrong("its tokens lie outside of the prompt, or in another one");
    for (int64_t at = image.position; at < image.end(); ++at)
      if (r.prompt[static_cast<size_t>(at)] != vision.token) return wrong("other tokens stand in its place");
    last = image.end();
    if (image.patches == nullptr || image.patches->plan.rows != image.rows * c.merge ||
        image.patches->plan.columns != image.columns * c.merge || image.patches->length != c.patch_bytes())
      return wrong("it has no such patches");
    if (image.patches->count() > room.patches || image.tokens() > room.tokens)
      return request_error("image {}: {} patches are more than the {} of the largest picture", i,
                           image.patches->count(), room.patches);
  }
  return {};
}

// The tokens that end a generation of this request, in increasing order.
std::vector<TokenId> ending_tokens(const Request& r, const LoadedModel& model) {
  std::vector<TokenId> ids = r.stop_tokens;
  if (!r.ignore_eos && model.tokenizer) {
    const std::span<const TokenId> eog = model.tokenizer->eog_tokens();
    ids.insert(ids.end(), eog.begin(), eog.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

Status check_constraint(const Constraint& c, int64_t vocab) {
  if (c.grammar != nullptr && (c.vocabulary == nullptr || std::ssize(c.vocabulary->bytes) != vocab))
    return request_error("the grammar was not compiled for this model's vocabulary of {} tokens", vocab);
  if (!c.allowed.empty() && std::ssize(c.allowed) != mask_words(vocab))
    return request_error("a mask of allowed tokens has {} words, not {}", c.allowed.size(), mask_words(vocab));
  for (const std::vector<TokenId>& word : c.bad_words) {
    if (word.empty()) return request_error("a bad word has no tokens");
    for (const TokenId t : word)
      if (t < 0 || t >= vocab) return request_error("bad word: token {}: the vocabulary has {} tokens", t, vocab);
  }
  return {};
}

// Whether the first mask takes long is found out on the thread that submits, which keeps it then.
std::shared_ptr<MaskJob> first_mask(const std::shared_ptr<ConstrainedOutput>& constraint) {
  if (!constraint->masked() || !constraint->depends()) return nullptr;
  auto job = std::make_shared<MaskJob>();
  job->constraint = constraint;
  while (!job->done) job->advance();
  return constraint->quick() ? nullptr : job;
}

}  // namespace

Status Engine::validate(const Request& r) const {
  const int64_t vocab = model_->model->config().vocab;
  const auto prompt = static_cast<int64_t>(r.prompt.size());
  if (prompt == 0) return request_error("the prompt is empty: there is nothing to continue");
  for (size_t i = 0; i < r.prompt.size(); ++i)
    if (r.prompt[i] < 0 || r.prompt[i] >= vocab)
      return request_error("prompt token {} is {}: the vocabulary has {} tokens", i, r.prompt[i], vocab);
  if (r.images != nullptr) QUIRE_CHECKED(check_images(*r.images, r, *model_, plan_.encoder));
  if (r.embed) {
    if (prompt <= plan_.context) return {};
    return request_error("the prompt has {} tokens, but the context holds {}", prompt, plan_.context);
  }
  if (r.max_tokens < 0) return request_error("max_tokens is {}: must be at least 0", r.max_tokens);
  if (prompt + std::min<int64_t>(r.max_tokens, 1) > plan_.context)
    return request_error("the prompt has {} tokens, but the context holds {} including the answer", prompt,
                         plan_.context);
  for (TokenId t : r.stop_tokens)
    if (t < 0 || t >= vocab) return request_error("stop token {}: the vocabulary has {} tokens", t, vocab);
  if (!r.stop.empty() && !model_->tokenizer)
    return request_error("stop texts need a tokenizer, and this model file has none");
  if (r.min_tokens < 0 || r.min_tokens > r.max_tokens)
    return request_error("min_tokens is {}: must be between 0 and max_tokens, which is {}", r.min_tokens, r.max_tokens);
  if (r.prompt_logprobs >= 0 && plan_.max_prompt_logprobs < 0)
    return request_error("this engine computes no log-probabilities of prompts");
  if (r.prompt_logprobs < -1 || r.prompt_logprobs > plan_.max_prompt_logprobs)
    return request_error("{} log-probabilities beside each token of the prompt: this engine reports at most {}",
                         r.prompt_logprobs, plan_.max_prompt_logprobs);
  if (r.constraint != nullptr) QUIRE_CHECKED(check_constraint(*r.constraint, vocab));
  QUIRE_CHECKED(r.sampling.validate(vocab));
  if (r.min_tokens > 0) {
    const size_t taken = r.sampling.logit_bias.size() + ending_tokens(r, *model_).size();
    if (std::cmp_greater(taken, plan_.max_logit_bias))
      return request_error(
          "min_tokens forbids {} tokens that would end the answer, which counts as so many biases: with those of "
          "logit_bias more than the {} that this engine takes",
          taken - r.sampling.logit_bias.size(), plan_.max_logit_bias);
  }
  const StepCapacity& c = backend_->layout().capacity();
  return SampleLimits{.vocab = vocab,
                      .batch_slots = c.batch_slots,
                      .histories = c.batch_slots,
                      .max_top = c.max_top,
                      .max_bias = plan_.max_logit_bias}
      .check(r.sampling);
}

Result<RequestId> Engine::submit(Request request, Listener listener) {
  std::vector<Submission> one;
  one.push_back({std::move(request), std::move(listener)});
  QUIRE_TRY(const std::vector<RequestId> ids, submit(std::move(one)));
  return ids.front();
}

Result<std::vector<RequestId>> Engine::submit(std::vector<Submission> submissions) {
  std::vector<std::unique_ptr<Sequence>> sequences;
  sequences.reserve(submissions.size());
  for (Submission& s : submissions) {
    QUIRE_TRY(sequences.emplace_back(), prepare(std::move(s)));
  }
  return inbox_.put(std::move(sequences));
}

Result<std::unique_ptr<Sequence>> Engine::prepare(Submission submission) const {
  Request& request = submission.request;
  QUIRE_CHECKED(validate(request));
  if (request.embed) ignore_generation(request);
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  request.max_tokens = std::min(request.max_tokens, plan_.context - prompt);
  QUIRE_TRY(StopMatcher stop, StopMatcher::create(request.stop));
  auto s = std::make_unique<Sequence>();
  if (request.min_tokens > 0) s->ending = ending_tokens(request, *model_);
  if (request.constraint != nullptr && !request.constraint->empty()) {
    s->constraint = std::make_shared<ConstrainedOutput>(request.constraint, mask_words(model_->model->config().vocab));
    s->mask_job = first_mask(s->constraint);
  }
  s->output.reserve(static_cast<size_t>(request.max_tokens));
  const int64_t most_blocks = (prompt + request.max_tokens + kBlockTokens - 1) / kBlockTokens;
  cache_.prepare(s->memory, static_cast<int32_t>(most_blocks));
  s->prefix.reads = request.prompt_logprobs < 0 && !(request.embed && plan_.pooling == Pooling::kMean);
  if (request.prompt_logprobs >= 0) {
    s->results.logprobs = std::make_shared<PromptLogprobs>();
    s->results.logprobs->tops = static_cast<size_t>(request.prompt_logprobs);
  }
  const PromptImages none;
  const PromptImages& images = request.images != nullptr ? *request.images : none;
  s->pictures = picture_keys(salt_hash_, request.cache_salt, images);
  if (cache_.prefix_cache() != nullptr) {
    s->prefix.hashes = hash_prefixes(prefix_hash_, salt_hash_(std::as_bytes(std::span(request.cache_salt))),
                                     request.prompt, pictures_of_chunks(salt_hash_, images, prompt));
    // Other questions about a picture go on behind it.
    for (const PromptImage& image : images) request.cache_positions.push_back(image.end());
    s->prefix.checkpoints = Checkpoints(prompt, plan_.volatile_tail, request.cache_positions);
  }
  s->stream = std::make_shared<Delivery::Stream>(request, std::move(submission.listener),
                                                 model_->tokenizer ? &*model_->tokenizer : nullptr, std::move(stop));
  s->request = std::move(request);
  return s;
}

}  // namespace quire
