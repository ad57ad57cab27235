#include "server/zmtp_peer.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <utility>

namespace quire::server {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::chrono::seconds kPatience{10};  // from the connection to READY

}  // namespace

ZmtpPeer::ZmtpPeer(Socket socket, std::string name, const Role& role)
    : socket_(std::move(socket)), patience_(socket_.get_executor()), name_(std::move(name)), role_(role) {}

void ZmtpPeer::start() {
  patience_.expires_after(kPatience);
  patience_.async_wait([self = shared_from_this()](const error_code& stopped) {
    if (!stopped && !self->ready_) self->close("it said nothing for 10 s");
  });
  error_code gone;
  socket_.set_option(asio::socket_base::keep_alive(true), gone);  // of a machine that is switched off nothing is heard
  (void)write({std::make_shared<const std::string>(zmtp_greeting() + zmtp_ready(role_.type))});
  read();
}

void ZmtpPeer::close(const std::string& why) {
  if (std::exchange(closed_, true)) return;
  error_code ignored;
  socket_.close(ignored);
  patience_.cancel();
  waiting_.clear();
  role_.on_end(*this, why);
}

void ZmtpPeer::read() {
  socket_.async_read_some(asio::buffer(input_), [self = shared_from_this()](const error_code& ec, size_t bytes) {
    if (self->closed_) return;
    if (ec) return self->close("");
    if (const Status s = self->take({self->input_.data(), bytes}); !s.ok()) return self->close(s.error().message);
    if (!self->closed_) self->read();
  });
}

Status ZmtpPeer::take(std::string_view bytes) {
  std::vector<ZmtpItem> items;
  QUIRE_CHECKED(reader_.feed(bytes, items));
  for (ZmtpItem& item : items)
    if (!closed_) QUIRE_CHECKED(take_item(std::move(item)));
  return {};
}

Status ZmtpPeer::take_item(ZmtpItem item) {
  if (ready_) {
    if (item.command == "PING") {
      (void)write({std::make_shared<const std::string>(zmtp_pong(item.frames[0]))});
      return {};
    }
    return role_.on_item(*this, std::move(item));
  }
  if (item.command != "READY") return request_error("it begins with something else than READY");
  QUIRE_TRY(const std::string type, zmtp_socket_type(item.frames[0]));
  if (std::ranges::find(role_.partners, type) == role_.partners.end())
    return request_error("it is a {} socket, and this one is {}", type, role_.type);
  ready_ = true;
  patience_.cancel();
  return {};
}

bool ZmtpPeer::write(std::vector<Bytes> parts) {
  size_t bytes = 0;
  for (const Bytes& p : parts) bytes += p->size();
  if (closed_ || (waiting_bytes_ > 0 && waiting_bytes_ + bytes > role_.most_waiting)) return false;
  waiting_bytes_ += bytes;
  std::ranges::move(parts, std::back_inserter(waiting_));
  if (!writing_) write_next();
  return true;
}

void ZmtpPeer::write_next() {
  writing_ = true;
  asio::async_write(socket_, asio::buffer(*waiting_.front()),
                    [self = shared_from_this(), bytes = waiting_.front()](const error_code& ec, size_t) {
                      if (self->closed_) return;
                      if (ec) return self->close("");
                      self->waiting_bytes_ -= bytes->size();
                      self->waiting_.pop_front();
                      if (!self->waiting_.empty()) return self->write_next();
                      self->writing_ = false;
                      self->role_.on_written(*self);
                    });
}

}  // namespace quire::server
