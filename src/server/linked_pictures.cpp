// Pictures that conversations name by URL: fetched between two tasks of one request.
#include <map>

#include "server/api.h"
#include "server/media/media_fetcher.h"

namespace quire::server {
namespace {

// Where the pictures of each URL stand in the list: each is fetched once.
std::map<std::string_view, std::vector<size_t>> links_of(const Pictures& pictures) {
  std::map<std::string_view, std::vector<size_t>> links;
  for (size_t i = 0; i < pictures.files.size(); ++i)
    if (const std::string& url = pictures.files[i]->url; !url.empty()) links[url].push_back(i);
  return links;
}

}  // namespace

ApiStatus Api::with_pictures(Call& call, Pictures& pictures, CallHandler then) {
  const auto links = links_of(pictures);
  if (links.empty()) return then(call);
  MediaFetcher::Request request{.client = pool_client_of(call),
                                .body_bytes = call.bytes,
                                .policy = call.loaded.model->limits().media,
                                .max_bytes = static_cast<size_t>(call.loaded.model->limits().image.max_bytes),
                                .pictures = {},
                                .gone = [ticket = call.ticket] { return ticket->cancelled(); },
                                .done = {}};
  std::vector<std::vector<size_t>> places;
  for (const auto& [url, where] : links) {
    request.pictures.push_back(pictures.files[where.front()]);
    places.push_back(where);
  }
  const auto kept = std::make_shared<Call>(std::move(call));
  request.done = [this, kept, &pictures, places = std::move(places), then](MediaFetcher::Fetched fetched) {
    if (!fetched.ok()) return go_on_later(kept, fetched.take_error(), then);
    for (size_t i = 0; i < places.size(); ++i)
      for (const size_t at : places[i]) pictures.files[at] = (*fetched)[i];
    go_on_later(kept, {}, then);
  };
  ApiStatus begun = media_->fetch(std::move(request));
  if (!begun.ok()) call = std::move(*kept);
  return begun;
}

void Api::go_on_later(const std::shared_ptr<Call>& call, ApiStatus fetched, CallHandler then) {
  RequestPool::Task task{.client = pool_client_of(*call), .bytes = call->bytes, .ticket = call->ticket};
  task.refuse = [responder = call->responder](const ApiError& error) { answer(responder, error); };
  task.run = [call, fetched = std::move(fetched), then = std::move(then)] {
    if (call->ticket->cancelled()) return;
    const ApiStatus done = fetched.ok() ? then(*call) : fetched;
    if (!done.ok()) refuse(*call, done.error());
  };
  if (const ApiStatus queued = pool_.finish(std::move(task)); !queued.ok()) answer(call->responder, queued.error());
}

}  // namespace quire::server
