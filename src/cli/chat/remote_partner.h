// The model of a server of the OpenAI API as who answers.
#pragma once

#include <memory>

#include "cli/chat/partner.h"
#include "hub/http.h"

namespace quire::cli {

struct ServerOptions {
  std::string url;      // http[s]://host[:port][/base]; without a scheme it is http
  std::string model;    // empty: the first that the server lists
  std::string key;      // empty: none
  std::string ca_file;  // certificates to trust beside the system's; empty: none
  std::vector<std::string> stop;
};

class RemotePartner : public ChatPartner {
 public:
  // Asks the server for its models. Errors name it: no URL, nobody there, no such model, a key that it does not take.
  static Result<std::unique_ptr<RemotePartner>> connect(const ServerOptions& options);

  std::string name() const override;
  std::string about() const override;
  int64_t context() const override { return context_; }
  int64_t vocabulary() const override;
  Result<std::string> chat_template() const override;
  Result<int64_t> count_tokens(const Conversation&, const ChatSettings&) const override { return int64_t{0}; }
  Result<std::variant<ChatAnswer, ChatTooLong>> answer(const Conversation& conversation, const ChatSettings& settings,
                                                       Console& console) override;

 private:
  explicit RemotePartner(ServerOptions options) : options_(std::move(options)) {}
  Status open();
  Status choose_model();
  hub::Url url_of(std::string_view path) const;
  std::string request_body(const Conversation& conversation, const ChatSettings& settings) const;

  ServerOptions options_;
  hub::Url base_;  // without /v1, and without a slash at its end
  hub::HttpOptions http_;
  std::string model_;
  int64_t context_ = 0;
};

}  // namespace quire::cli
