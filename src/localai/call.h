// A call in progress, as the server's Responder: what is posted runs on the call's strand, one piece after the other.
// Where memory runs out there, that call alone fails.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <deque>
#include <memory>

#include "localai/frames.h"
#include "localai/messages.h"
#include "localai/status.h"
#include "server/responder.h"

namespace quire::localai {

// What both kinds of call have in common. It lives until gRPC says that it is over; whoever else holds it may outlive
// that, and what is said then is dropped.
class Call : public server::Responder, public std::enable_shared_from_this<Call> {
 public:
  using Responder::send;
  void on_disconnect(std::function<void()> then) override;
  void on_deadline(std::chrono::milliseconds after, std::function<void()> then) override;
  void post(std::function<void()> work) override;
  void start_stream(const server::StreamKind&) override {}

  // Ends the call with this status, behind what was said before. The first one counts.
  virtual void end(grpc::Status status) = 0;
  // What must live as long as this call is being answered.
  void keep(std::shared_ptr<void> what) { kept_ = std::move(what); }

 protected:
  explicit Call(boost::asio::thread_pool& threads) : strand_(threads.get_executor()), timer_(strand_) {}
  // On the strand, each of them.
  bool answered() const { return answered_; }
  bool disconnected() const { return disconnected_; }
  void set_answered();
  // Nobody listens any more. Whoever computes is told.
  void disconnect();
  // Instead of what it was to do before.
  void set_timer(std::chrono::milliseconds after, std::function<void()> then);
  void stop_timer() { timer_.cancel(); }

 private:
  void run_out_of_memory();

  boost::asio::strand<boost::asio::thread_pool::executor_type> strand_;
  boost::asio::steady_timer timer_;
  std::function<void()> on_disconnect_;
  std::shared_ptr<void> kept_;
  bool answered_ = false;      // the answer is complete, or has failed
  bool disconnected_ = false;  // nobody listens
};

// A call with one answer, whose bytes are those of the response's message.
class UnaryCall final : public Call, public grpc::ServerUnaryReactor {
 public:
  static std::shared_ptr<UnaryCall> make(boost::asio::thread_pool& threads, grpc::ByteBuffer* response) {
    std::shared_ptr<UnaryCall> call(new UnaryCall(threads, response));
    call->self_ = call;
    return call;
  }

  using Call::send;
  void send(server::HttpResponse answer) override {
    if (answered()) return;
    set_answered();
    *response_ = to_buffer(answer.body);
    Finish(grpc::Status::OK);
  }
  void send(const server::ApiError& error) override { end(to_status(error)); }
  void end(grpc::Status status) override {
    if (answered()) return;
    set_answered();
    Finish(std::move(status));
  }
  void write(std::string) override {}
  void finish_stream() override {}

  void OnCancel() override {
    post([this, self = self_] {
      if (answered()) return;
      disconnect();
      end(grpc::Status::CANCELLED);
    });
  }
  void OnDone() override {
    post([self = std::move(self_)] { self->stop_timer(); });
  }

 private:
  UnaryCall(boost::asio::thread_pool& threads, grpc::ByteBuffer* response) : Call(threads), response_(response) {}
  grpc::ByteBuffer* response_;
  std::shared_ptr<UnaryCall> self_;
};

// A call with a stream of replies.
class StreamCall final : public Call, public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  static std::shared_ptr<StreamCall> make(boost::asio::thread_pool& threads, grpc::CallbackServerContext* context);

  using Call::send;
  void send(server::HttpResponse) override { end(grpc::Status::OK); }
  void send(const server::ApiError& error) override { end(to_status(error)); }
  void write(std::string frames) override;
  void finish_stream() override { end(grpc::Status::OK); }
  void end(grpc::Status status) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  StreamCall(boost::asio::thread_pool& threads, grpc::CallbackServerContext* context)
      : Call(threads), context_(context) {}
  void give_up();
  void go_on();

  grpc::CallbackServerContext* context_;
  std::deque<grpc::ByteBuffer> waiting_;  // the first one is being written, if writing_
  size_t waiting_bytes_ = 0;
  bool writing_ = false, finished_ = false;
  grpc::Status status_;
  std::shared_ptr<StreamCall> self_;
};

}  // namespace quire::localai
