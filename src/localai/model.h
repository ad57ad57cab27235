// The model that the backend has now, if any.
#pragma once

#include <backend.pb.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "localai/localai.h"
#include "localai/predict_writer.h"
#include "server/api.h"

namespace quire::localai {

// A model that is loaded, with the threads that read its requests.
struct Model {
  explicit Model(const server::ServeOptions& options);

  std::string identity;  // ModelOptions.Model
  std::shared_ptr<LastAnswer> last = std::make_shared<LastAnswer>();
  server::Registry registry;
  server::Api api;
  std::weak_ptr<server::Service> service;  // the api's
};

class ModelHolder {
 public:
  explicit ModelHolder(ReadOptions read_options) : read_options_(std::move(read_options)) {}
  ~ModelHolder() { free(); }

  // Takes the place of the one there was, of which requests in progress are told that it is given up. load() and
  // free(): one thread at a time. Errors: why there is none now.
  Status load(const backend::ModelOptions& asked);
  void free();

  // Any thread.
  std::shared_ptr<Model> current() const;
  backend::StatusResponse::State state() const;
  bool is_loading() const { return state() == backend::StatusResponse::BUSY; }

 private:
  Status try_load(const backend::ModelOptions& asked);
  void set_state(backend::StatusResponse::State state);
  // Models that were given up go when no call has them any more: not on a thread of theirs, which they wait for.
  void drop_retired();

  const ReadOptions read_options_;
  std::vector<std::shared_ptr<Model>> retired_;
  mutable std::mutex mutex_;
  std::shared_ptr<Model> model_;
  backend::StatusResponse::State state_ = backend::StatusResponse::UNINITIALIZED;
};

// What LocalAI asks of a loaded model's templates.
backend::ModelMetadataResponse metadata_of(const server::ModelContext& model);

}  // namespace quire::localai
