// The tools that a request offers to the model, and how it is to use them.
#pragma once

#include <memory>

#include "server/protocol/fields.h"
#include "server/protocol/generation_params.h"
#include "server/tools/tool_set.h"

namespace quire::server {

// Whether the model must call a tool.
struct ToolChoice {
  bool required = false;
  std::string name;  // of the one that it must call; empty: any
};

struct ToolRequest {
  // As the chat template gets them: [{"type": "function", "function": {"name", "description", "parameters"}}], with
  // whatever else the client wrote. null: the model is told of none.
  JsonDocument offered;
  std::shared_ptr<const ToolSet> set;  // null: none
  bool parallel = true;                // more than one call in an answer
  ToolChoice choice;
};

// Checks tools of this form, and gives them to `t`. Errors, which are kept in `f`, name the field `name`. Where the
// chat template knows no tools they are noted as ignored.
void offer_tools(Fields& f, std::string_view name, Json tools, const RequestLimits& limits, ToolRequest& t);

// Takes "tools", "tool_choice", "parallel_tool_calls", and the older "functions" and "function_call" out of a body.
void read_tools(Fields& f, const RequestLimits& limits, ToolRequest& t);

inline constexpr size_t kMaxToolName = 256;  // bytes

}  // namespace quire::server
