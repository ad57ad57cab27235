// A loaded model as the protocol sees it: names, limits, and prompts made of text and conversations.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "constraint/grammar_cache.h"
#include "engine/loaded_model.h"
#include "server/picture_prompt.h"
#include "server/picture_store.h"
#include "server/protocol/chat_request.h"
#include "server/template_needs.h"
#include "server/tools/tool_format.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/infill_tokens.h"

namespace quire::server {

// A prompt ready for the engine.
struct EncodedPrompt {
  std::vector<TokenId> tokens;
  std::string text;                      // what was tokenized; empty for prompts given as tokens
  bool from_messages = false;            // it is a conversation, and not a text
  bool inside_reasoning = false;         // it ends within an open <think>
  std::vector<int64_t> cache_positions;  // tokens after which its state should be saved
  std::vector<PlacedPicture> pictures;   // in its order, not decoded
};

class ModelContext {
 public:
  struct Options {
    std::vector<std::string> names;  // what clients may call the model; the first one is shown
    std::string path;                // of the file
    std::string chat_template;       // instead of the file's own, if not empty
    RequestLimits limits;            // vocab and context are filled in
    int64_t context = 0;
    int32_t engines = 1;              // that serve it side by side; of all of them together:
    int32_t sequences = 0;            // that run at once
    int64_t kv_tokens = 0;            // that the KV cache holds
    std::string fingerprint;          // what answers carry as system_fingerprint
    bool special_in_content = false;  // control tokens in messages are such, and not text
    GrammarCacheOptions grammars;
    const ToolFormat* tool_format = nullptr;  // how the model writes calls; null: as its chat template tells
  };
  // Errors: no tokenizer in the file, a chat template that is none.
  static Result<std::shared_ptr<const ModelContext>> create(std::shared_ptr<const LoadedModel> loaded, Options options);

  const std::string& name() const { return options_.names.front(); }
  const std::vector<std::string>& names() const { return options_.names; }
  const std::string& fingerprint() const { return options_.fingerprint; }
  const RequestLimits& limits() const { return options_.limits; }
  int64_t context() const { return options_.context; }
  int32_t engines() const { return options_.engines; }
  int32_t sequences() const { return options_.sequences; }
  int64_t kv_tokens() const { return options_.kv_tokens; }
  int64_t created() const { return created_; }  // seconds since 1970
  const std::string& chat_template() const { return template_source_; }
  const ToolFormat& tool_format() const { return *options_.tool_format; }
  const Tokenizer& tokenizer() const { return *loaded_->tokenizer; }
  const LoadedModel& loaded() const { return *loaded_; }
  GrammarCache& grammars() const { return *grammars_; }
  PictureStore* pictures() const { return pictures_.get(); }  // null: the model takes none

  // 404 unless the request names this model, or none: routers fill in "unknown" and "default" where a client said
  // nothing. Nothing else is wrong where the operator takes any name.
  ApiStatus check_name(const std::string& asked) const;
  // What an answer calls the model: as the client did, if it did.
  const std::string& told_name(const std::string& asked) const;
  ApiResult<EncodedPrompt> encode(Conversation conversation, bool add_special = false) const;
  ApiResult<EncodedPrompt> encode(Prompt prompt, bool add_special) const;
  // An input of which, in place of an error, no more than its beginning is taken that fits the context.
  ApiResult<EncodedPrompt> encode_beginning(Prompt prompt, bool add_special) const;
  // A part of a text that has no control tokens.
  ApiResult<std::vector<TokenId>> encode_plain(const std::string& text) const;
  // For filling in, if the vocabulary has them.
  const std::optional<InfillTokens>& infill_tokens() const { return infill_; }
  // 400 unless an input of so many tokens, after which nothing is generated, is not empty and fits the context.
  ApiStatus check_input(size_t tokens) const;
  // How many tokens a request may generate after such a prompt, or 400 context_length_exceeded.
  ApiResult<int64_t> room_for(const EncodedPrompt& prompt, const GenerationParams& params) const;

 private:
  ModelContext(std::shared_ptr<const LoadedModel> loaded, Options options);
  TemplateOptions template_options() const;
  CallArguments probe_call_arguments() const;
  Status prepare_pictures();
  Result<TemplateNeeds> probe_needs() const;
  // `what` the text is, for messages: "prompt".
  ApiResult<std::vector<TokenId>> encode_text(const std::string& text, EncodeOptions options,
                                              std::string_view what) const;
  ApiError too_long(size_t bytes, std::string_view what) const;
  ApiStatus place_pictures(EncodedPrompt& prompt) const;

  std::shared_ptr<const LoadedModel> loaded_;
  Options options_;
  std::unique_ptr<GrammarCache> grammars_;
  std::unique_ptr<PictureStore> pictures_;
  PictureTemplate picture_template_;
  std::string template_source_;
  std::optional<ChatTemplate> chat_;
  TemplateNeeds needs_;
  std::optional<InfillTokens> infill_;
  size_t token_bytes_ = 1;     // no token stands for more bytes of a text
  size_t max_text_bytes_ = 0;  // a longer text has more tokens than the context, whatever it says
  int64_t created_ = 0;
};

}  // namespace quire::server
