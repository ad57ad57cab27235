// A conversation at the terminal, whoever answers.
#pragma once

#include "cli/chat/line_editor.h"
#include "cli/chat/partner.h"
#include "cli/run.h"

namespace quire::cli {

class ChatSession {
 public:
  // `quiet`: no banner. The partner must outlive it.
  ChatSession(ChatPartner& partner, ChatSettings settings, std::string system, bool quiet);

  // Until its user ends it. Errors: those of more than a message.
  Status run();

 private:
  enum class Next { kGoOn, kEnd };

  TypedLine read_message();
  Next obey(const ChatCommand& command);
  Status obey_or_answer(const ChatCommand& command, Next& next);
  void show_or_set_system(const std::string& argument);
  void set(const std::string& argument);
  void show(const std::string& topic);
  std::string info() const;
  void load(const std::string& path);
  void read_file(const std::string& path);
  void attach_picture(const std::string& path);
  Status regenerate();
  Status edit();
  Status take_turn(const std::string& message);
  Status answer_or_restore(const Conversation& before, bool& answered);
  Result<bool> answered();
  Result<bool> make_room(const ChatTooLong& over, bool& dropping);
  void show_status(const ChatAnswer& answer) const;
  std::string of_context(int64_t tokens) const;

  ChatPartner& partner_;
  ChatSettings settings_;
  bool quiet_;
  CancelKey cancel_key_;
  Console console_;
  LineEditor editor_;
  Conversation conversation_;
  std::string attached_;                      // texts of files that the next message begins with
  std::vector<server::PicturePtr> pictures_;  // likewise
  int64_t used_ = 0;                          // tokens of context after the last answer; 0: not known
};

}  // namespace quire::cli
