#include "localai/call.h"

#include <new>
#include <stdexcept>

namespace quire::localai {
namespace {

// Of a client that does not read: beyond it the call is cut.
constexpr size_t kMostWaitingBytes = size_t{16} << 20;
// For a client to read the rest of a stream that has ended.
constexpr std::chrono::seconds kLastReplies{60};

}  // namespace

void Call::post(std::function<void()> work) {
  boost::asio::post(strand_, [self = shared_from_this(), work = std::move(work)] {
    try {
      return work();
    } catch (const std::bad_alloc&) {
    } catch (const std::length_error&) {
    }
    self->run_out_of_memory();
  });
}

// The status says it in few letters, for which a string needs no memory of its own.
void Call::run_out_of_memory() {
  disconnect();  // whoever computes the answer stops
  end({grpc::StatusCode::RESOURCE_EXHAUSTED, "out of memory"});
}

void Call::on_disconnect(std::function<void()> then) {
  if (answered_) return;
  if (disconnected_) return then();
  on_disconnect_ = std::move(then);
}

void Call::on_deadline(std::chrono::milliseconds after, std::function<void()> then) {
  if (answered_) return;
  set_timer(after, [this, then = std::move(then)] {
    if (!answered_) then();
  });
}

void Call::set_timer(std::chrono::milliseconds after, std::function<void()> then) {
  timer_.expires_after(after);
  timer_.async_wait([weak = weak_from_this(), then = std::move(then)](const boost::system::error_code& cancelled) {
    if (const auto self = weak.lock(); self != nullptr && !cancelled) then();
  });
}

void Call::set_answered() {
  answered_ = true;
  on_disconnect_ = nullptr;
  kept_ = nullptr;
  timer_.cancel();
}

void Call::disconnect() {
  if (disconnected_ || answered_) return;
  disconnected_ = true;
  if (const auto then = std::exchange(on_disconnect_, nullptr)) then();
}

std::shared_ptr<StreamCall> StreamCall::make(boost::asio::thread_pool& threads, grpc::CallbackServerContext* context) {
  std::shared_ptr<StreamCall> call(new StreamCall(threads, context));
  call->self_ = call;
  return call;
}

void StreamCall::write(std::string frames) {
  if (answered()) return;
  std::string_view rest = frames;
  while (!rest.empty() && !answered()) {
    Frame frame = take_frame(rest);
    if (const auto* const error = std::get_if<server::ApiError>(&frame)) return end(to_status(*error));
    waiting_.push_back(to_buffer(std::get<std::string>(frame)));
    waiting_bytes_ += waiting_.back().Length();
  }
  if (waiting_bytes_ > kMostWaitingBytes) return give_up();
  go_on();
}

void StreamCall::end(grpc::Status status) {
  if (answered()) return;
  set_answered();
  status_ = std::move(status);
  go_on();
  if (!finished_) set_timer(kLastReplies, [this] { context_->TryCancel(); });
}

// The client has left, or does not read.
void StreamCall::give_up() {
  if (finished_) return;
  disconnect();
  if (!answered()) set_answered();
  status_ = grpc::Status::CANCELLED;
  while (waiting_.size() > (writing_ ? 1 : 0)) waiting_.pop_back();
  context_->TryCancel();
  go_on();
}

void StreamCall::go_on() {
  if (writing_ || finished_) return;
  if (!waiting_.empty()) {
    writing_ = true;
    return StartWrite(&waiting_.front());
  }
  if (!answered()) return;
  finished_ = true;
  stop_timer();
  Finish(status_);
}

void StreamCall::OnWriteDone(bool ok) {
  post([this, self = self_, ok] {
    writing_ = false;
    waiting_bytes_ -= std::min(waiting_bytes_, waiting_.front().Length());
    waiting_.pop_front();
    if (!ok) return give_up();
    go_on();
  });
}

void StreamCall::OnCancel() {
  post([this, self = self_] { give_up(); });
}

void StreamCall::OnDone() {
  post([self = std::move(self_)] { self->stop_timer(); });
}

}  // namespace quire::localai
