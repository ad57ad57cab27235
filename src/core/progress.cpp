#include "core/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

constexpr int kBarWidth = 24;
// Work that ends sooner than this shows nothing; the bar is then redrawn ten times a second.
constexpr auto kFirstDraw = std::chrono::milliseconds(300), kInterval = std::chrono::milliseconds(100);

std::string amount(double x, Progress::Unit unit) {
  if (unit == Progress::Unit::kItems) return fmt::format("{:.0f}", x);
  if (x < 1e9) return fmt::format("{:.0f} MB", x / 1e6);
  return fmt::format("{:.1f} GB", x / 1e9);
}

std::string duration(double seconds) {
  const auto s = static_cast<int64_t>(std::ceil(std::min(seconds, 1e9)));
  if (s < 100) return fmt::format("{} s", s);
  if (s < 6000) return fmt::format("{}:{:02} min", s / 60, s % 60);
  return fmt::format("{}:{:02} h", s / 3600, s / 60 % 60);
}

}  // namespace

std::string progress_line(const std::string& what, int64_t done, int64_t total, Progress::Unit unit, double seconds) {
  const double share = total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 1.0;
  const int filled = static_cast<int>(share * kBarWidth);
  std::string bar(static_cast<size_t>(filled), '=');
  if (filled < kBarWidth) bar += '>';
  bar.resize(kBarWidth, ' ');
  std::string line = fmt::format("{} [{}] {:3.0f}%  {} of {}", what, bar, std::floor(share * 100),
                                 amount(static_cast<double>(done), unit), amount(static_cast<double>(total), unit));
  if (seconds < 0.2 || done <= 0) return line;
  const double rate = static_cast<double>(done) / seconds;
  if (unit == Progress::Unit::kBytes) line += fmt::format("  {}/s", amount(rate, unit));
  return line + fmt::format("  {} left", duration(static_cast<double>(std::max<int64_t>(total - done, 0)) / rate));
}

Progress::Progress(std::string what, int64_t total, Unit unit)
    : Progress(std::move(what), total, unit, isatty(STDERR_FILENO) ? stderr : nullptr) {
  next_draw_ = start_ + kFirstDraw;
}

Progress::Progress(std::string what, int64_t total, Unit unit, std::FILE* to)
    : what_(std::move(what)), total_(total), unit_(unit), to_(to), start_(Clock::now()), next_draw_(start_) {}

Progress::~Progress() {
  if (width_ == 0) return;
  std::fprintf(to_, "\r%*s\r", static_cast<int>(width_), "");
  std::fflush(to_);
}

void Progress::set(int64_t done) {
  done_ = done;
  if (to_ == nullptr) return;
  const Clock::time_point now = Clock::now();
  if (now < next_draw_) return;
  draw(now);
  next_draw_ = now + kInterval;
}

void Progress::draw(Clock::time_point now) {
  const std::string line =
      progress_line(what_, done_, total_, unit_, std::chrono::duration<double>(now - start_).count());
  // Blanks over the rest of a longer line drawn before.
  const size_t pad = width_ > line.size() ? width_ - line.size() : 0;
  std::fprintf(to_, "\r%s%*s", line.c_str(), static_cast<int>(pad), "");
  std::fflush(to_);
  width_ = line.size();
}

}  // namespace quire
