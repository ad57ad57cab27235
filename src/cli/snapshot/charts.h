// Small charts as SVG, drawn with the page's own colours (page.css) and without any script.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::cli::snapshot {

// Text for HTML and SVG, also within quotes: what is markup there is a character here, and control characters are
// shown as such (core/escape.h).
std::string html(std::string_view text);

struct ChartPoint {
  double x = 0, y = 0;
};
struct ChartLine {
  std::string name;
  std::vector<ChartPoint> points;  // in the order of x
};
struct ChartOptions {
  std::string title, x_name, y_name;
  bool log_x = false;  // base 2, for numbers of clients
  bool dots = true;    // each point is marked
};
// Lines over one another, with an axis that begins at 0. Empty where there is nothing to draw.
std::string line_chart(const std::vector<ChartLine>& lines, const ChartOptions& options);

struct ChartBar {
  std::string name, value;  // as they are shown
  double length = 0;        // in any unit, the same for all
};
std::string bar_chart(const std::vector<ChartBar>& bars, const std::string& title);

// Readings as dots on one line, for a table's cell: how far they scatter about their middle.
std::string strip(const std::vector<double>& values);

// "1.2 GB" and "940 MB" of bytes; "3.4k" and "12" of anything.
std::string short_bytes(double bytes);
std::string short_number(double value);

}  // namespace quire::cli::snapshot
