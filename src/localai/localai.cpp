#include "localai/localai.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "core/descriptors.h"
#include "core/heap.h"
#include "core/output.h"
#include "core/signals.h"
#include "localai/backend.h"

namespace quire::localai {
namespace {

constexpr int kMostMessageBytes = 50 << 20;            // LocalAI's
constexpr int kMostCalls = 1024;                       // of one connection at a time
constexpr size_t kMostMemory = size_t{1} << 30;        // that gRPC keeps of all messages
constexpr std::chrono::seconds kDrain{10};             // for calls in progress at the end
constexpr std::chrono::milliseconds kParentLook{500};  // how often it is looked whether the parent is still there

// Wakes whoever waits for signals when the process that started this one has ended, whose number nobody else gets as
// this one's parent. PR_SET_PDEATHSIG would do it at the end of the parent's thread.
class ParentWatch {
 public:
  explicit ParentWatch(const SignalNotes& signals)
      : thread_([this, &signals, parent = getppid()] {
          while (!stop_ && getppid() == parent) std::this_thread::sleep_for(kParentLook);
          gone_ = !stop_;
          signals.wake();
        }) {}
  ~ParentWatch() {
    stop_ = true;
    thread_.join();
  }
  ParentWatch(const ParentWatch&) = delete;
  bool gone() const { return gone_; }

 private:
  std::atomic<bool> stop_{false}, gone_{false};
  std::thread thread_;
};

Result<std::unique_ptr<grpc::Server>> listen(const std::string& address, Backend& backend) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size())
    return request_error("--addr {}: must be HOST:PORT, such as 127.0.0.1:50051", address);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMostMessageBytes);
  builder.SetMaxSendMessageSize(kMostMessageBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("messages").Resize(kMostMemory));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostCalls);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);  // who has vanished is noticed
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&backend);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0)
    return request_error("--addr {}: cannot listen there; is the port taken, or the host not this machine's?", address);
  tell(fmt::format("LocalAI backend at {}:{}", address.substr(0, colon), port));
  return server;
}

}  // namespace

Status run_backend(const BackendOptions& options) {
  prepare_heap();
  std::signal(SIGPIPE, SIG_IGN);
  raise_descriptor_limit();
  server::KeyRing keys;
  if (!options.token_file.empty()) {
    QUIRE_TRY(keys, server::KeyRing::load(options.token_file).context("--auth-token-file"));
  }
  const SignalNotes signals({SIGTERM, SIGINT}, SignalNotes::Second::kEnds);
  const HeapKeeper heap;
  Backend backend(options.read_options, std::move(keys));
  QUIRE_TRY(const std::unique_ptr<grpc::Server> server, listen(options.address, backend));
  {
    const ParentWatch parent(signals);
    while (SignalNotes::count() == 0 && !parent.gone()) signals.wait();
    if (parent.gone()) tell("the process that started this one is gone");
  }
  if (backend.models().is_loading()) {
    tell("stopped while a model was being loaded");
    std::_Exit(0);  // that cannot be interrupted
  }
  if (const auto model = backend.models().current()) model->api.drain();
  server->Shutdown(std::chrono::system_clock::now() + kDrain);
  return {};
}

}  // namespace quire::localai
