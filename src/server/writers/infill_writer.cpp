#include "server/writers/infill_writer.h"

namespace quire::server {
namespace {

class InfillWriter : public AnswerWriter {
 public:
  explicit InfillWriter(std::string model) : model_(std::move(model)) {}

  std::string whole(std::span<const WholeAnswer> answers, const Usage& usage) override {
    const AnswerPart& part = *answers.front().part;
    end_ = end_of(part);
    return dump(last(whole_text(part.events), usage));
  }
  std::string opening(int, const PromptReport*, const UsageNow&) override { return {}; }
  std::string piece(const AnswerPart& part, const UsageNow&) override {
    if (!part.finish.empty()) end_ = end_of(part);
    const std::string text = whole_text(part.events);
    if (text.empty()) return {};
    return event({{"content", text}, {"model", model_}, {"stop", false}});
  }
  std::string end(const UsageNow& usage) override { return event(last("", usage())); }
  std::string failure(const ApiError& error) override { return "data: " + error.body(ErrorShape::kOpenAi) + "\n\n"; }

 private:
  static std::string event(const Json& value) { return "data: " + dump(value) + "\n\n"; }
  static std::string end_of(const AnswerPart& part) {
    if (part.finish == "length") return "limit";
    return part.stop.is_null() ? "eos" : "word";
  }
  Json last(std::string text, const Usage& u) const {
    return {{"content", std::move(text)},
            {"model", model_},
            {"stop", true},
            {"stop_type", end_},
            {"tokens_predicted", u.generated_tokens},
            {"tokens_evaluated", u.prompt_tokens},
            {"tokens_cached", u.cached_tokens}};
  }

  std::string model_, end_;
};

}  // namespace

std::unique_ptr<AnswerWriter> infill_writer(std::string model) {
  return std::make_unique<InfillWriter>(std::move(model));
}

}  // namespace quire::server
