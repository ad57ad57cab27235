// A model in this process as who answers.
#pragma once

#include <memory>

#include "cli/chat/partner.h"
#include "cli/run.h"

namespace quire::cli {

class LocalPartner : public ChatPartner {
 public:
  LocalPartner(const RunOptions& options, std::shared_ptr<const LoadedModel> model, std::unique_ptr<Engine> engine)
      : options_(options), model_(std::move(model)), engine_(std::move(engine)), pictures_(*model_) {}

  std::string name() const override;
  std::string about() const override;
  int64_t context() const override { return engine_->context(); }
  int64_t vocabulary() const override { return model_->model->config().vocab; }
  Result<std::string> chat_template() const override;
  Result<int64_t> count_tokens(const Conversation& conversation, const ChatSettings& settings) const override;
  Result<std::variant<ChatAnswer, ChatTooLong>> answer(const Conversation& conversation, const ChatSettings& settings,
                                                       Console& console) override;

 private:
  Result<ChatPrompt> encoded(const Conversation& conversation, const ChatSettings& settings) const;

  const RunOptions& options_;
  std::shared_ptr<const LoadedModel> model_;
  std::unique_ptr<Engine> engine_;
  PictureDecoder pictures_;
};

}  // namespace quire::cli
