#include "localai/model.h"

#include "core/log.h"
#include "core/output.h"
#include "localai/load_options.h"

namespace quire::localai {
namespace {

server::ApiOptions api_options(const server::ServeOptions& o) {
  server::ApiOptions api;
  api.request_timeout = o.request_timeout;
  api.split_reasoning = o.split_reasoning;
  api.pool = o.pool;
  return api;
}

}  // namespace

Model::Model(const server::ServeOptions& options) : api(api_options(options), registry) {}

Status ModelHolder::load(const backend::ModelOptions& asked) {
  free();
  set_state(backend::StatusResponse::BUSY);
  const Status loaded = try_load(asked);
  set_state(loaded.ok() ? backend::StatusResponse::READY : backend::StatusResponse::ERROR);
  if (!loaded.ok()) log_warning("the model is not loaded: " + loaded.error().message);
  return loaded;
}

Status ModelHolder::try_load(const backend::ModelOptions& asked) {
  QUIRE_TRY(const AskedOptions options, read_load_options(asked));
  QUIRE_TRY(const server::ServeOptions o, read_options_(options));
  QUIRE_TRY(std::string chat_template, server::read_template(o.chat_template_file, o.files_within));
  const auto model = std::make_shared<Model>(o);
  model->identity = asked.model();
  std::shared_ptr<server::EngineGroup> service;
  QUIRE_CHECKED(server::load_into(o, std::move(chat_template), nullptr, model->api, model->registry, service));
  model->service = service;
  const std::lock_guard lock(mutex_);
  model_ = model;
  tell(fmt::format("loaded {}", o.model));
  return {};
}

void ModelHolder::free() {
  std::shared_ptr<Model> old;
  {
    const std::lock_guard lock(mutex_);
    std::swap(old, model_);
    state_ = backend::StatusResponse::UNINITIALIZED;
  }
  if (old != nullptr) {
    old->api.forget();
    retired_.push_back(std::move(old));
  }
  drop_retired();
}

void ModelHolder::drop_retired() {
  std::erase_if(retired_, [](const std::shared_ptr<Model>& model) { return model.use_count() == 1; });
}

std::shared_ptr<Model> ModelHolder::current() const {
  const std::lock_guard lock(mutex_);
  return model_;
}

backend::StatusResponse::State ModelHolder::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void ModelHolder::set_state(backend::StatusResponse::State state) {
  const std::lock_guard lock(mutex_);
  state_ = state;
}

backend::ModelMetadataResponse metadata_of(const server::ModelContext& model) {
  backend::ModelMetadataResponse metadata;
  metadata.set_supports_thinking(!model.limits().effort_variable.empty());
  server::Conversation sample;
  sample.messages = server::JsonDocument(server::Json::array({{{"role", "user"}, {"content", "test"}}}));
  sample.template_variables = server::JsonDocument(server::Json{{"enable_thinking", true}});
  const server::ApiResult<server::EncodedPrompt> rendered = model.encode(std::move(sample));
  if (rendered.ok()) metadata.set_rendered_template(rendered->text);
  return metadata;
}

}  // namespace quire::localai
