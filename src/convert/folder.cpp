#include "convert/folder.h"

#include <filesystem>

#include "convert/json.h"
#include "convert/matrix.h"
#include "convert/metadata.h"

namespace quire::convert {
namespace {

namespace fs = std::filesystem;

Status check_folder(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return request_error("{}: no such folder", folder);
  if (!fs::is_directory(folder, error))
    return request_error("{}: is not a folder; give the one with config.json and the .safetensors files", folder);
  if (!fs::exists(fs::path(folder) / "config.json", error)) return request_error("{}: has no config.json", folder);
  return {};
}

Status read_templates(const fs::path& folder, TokenizerFiles& files) {
  std::error_code error;
  if (const fs::path main = folder / "chat_template.jinja"; fs::exists(main, error)) {
    QUIRE_TRY(files.template_file, read_text_file(main));
  } else if (const fs::path older = folder / "chat_template.json"; fs::exists(older, error)) {
    QUIRE_TRY(const nlohmann::json document, read_json_object(older));
    const nlohmann::json* text = find_member(document, "chat_template");
    if (text != nullptr && text->is_string()) files.template_file = text->get<std::string>();
  }
  for (fs::directory_iterator at(folder / "additional_chat_templates", error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() != ".jinja") continue;
    QUIRE_TRY(files.more_templates[at->path().stem()], read_text_file(at->path()));
  }
  return {};
}

Result<TokenizerFiles> read_tokenizer_files(const fs::path& folder) {
  std::error_code error;
  TokenizerFiles files;
  const bool has_model = fs::exists(folder / "tokenizer.model", error);
  if (!has_model && !fs::exists(folder / "tokenizer.json", error))
    return request_error("{}: has neither tokenizer.json nor tokenizer.model", folder.string());
  QUIRE_TRY(files.tokenizer, read_json_object_or_empty(folder / "tokenizer.json"));
  if (has_model) {
    QUIRE_TRY(files.model, read_text_file(folder / "tokenizer.model"));
  }
  QUIRE_TRY(files.added_tokens, read_json_object_or_empty(folder / "added_tokens.json"));
  QUIRE_TRY(files.tokenizer_config, read_json_object_or_empty(folder / "tokenizer_config.json"));
  QUIRE_TRY(files.generation_config, read_json_object_or_empty(folder / "generation_config.json"));
  QUIRE_CHECKED(read_templates(folder, files));
  return files;
}

}  // namespace

Result<ModelFolder> ModelFolder::read(const std::string& path, const PlanOptions& options) {
  QUIRE_CHECKED(check_folder(path));
  const fs::path folder(path);
  const std::string config_path = folder / "config.json";
  QUIRE_TRY(const nlohmann::json config_file, read_json_object(config_path));
  QUIRE_TRY(HfConfig config, read_hf_config(config_file).context(config_path));
  QUIRE_TRY(FolderWeights weights, FolderWeights::open(path));
  Source source(weights, config.gptq_v2);
  QUIRE_TRY(Plan plan, make_plan(source, config, options).context(path));
  QUIRE_TRY(TokenizerFiles files, read_tokenizer_files(folder));
  QUIRE_TRY(HfTokenizer tokenizer, read_hf_tokenizer(files, config).context(path));
  return ModelFolder{std::move(config), std::move(weights), std::move(plan), std::move(tokenizer),
                     std::move(files.generation_config)};
}

void ModelFolder::write_metadata(const std::string& name, gguf::Writer& w) const {
  convert::write_metadata(config, tokenizer, generation_config, plan, name, w);
}

}  // namespace quire::convert
