// One request's answers, from the jobs it becomes to the last byte it is told: a whole JSON object, or a stream.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/answer_parser.h"
#include "server/answer_writer.h"
#include "server/model_context.h"
#include "server/request_pool.h"
#include "server/responder.h"
#include "server/service.h"

namespace quire::server {

struct GenerationPlan {
  std::shared_ptr<const ModelContext> model;
  std::shared_ptr<Service> service;
  std::unique_ptr<AnswerWriter> writer;
  AnswerSyntax syntax;     // how the text of answers is read
  std::string model_name;  // as the client called it
  bool stream = false;
  bool logprobs = false;
  std::vector<PromptReport> prompts;  // what answers tell of them; empty: nothing. The first job of each brings it
  std::vector<std::string> stops;     // of the request, whose names an answer tells that one ended
  std::vector<TokenId> stop_tokens;
  bool counts_reasoning = false;                      // the usage tells how many tokens were reasoning
  bool report_ends = false;                           // log-probabilities of tokens that end an answer are told
  int64_t prompt_tokens = 0;                          // of all prompts, each counted once
  size_t answers_each = 1;                            // to a prompt; those to one stand together
  bool token_ids = false;                             // answers tell their tokens
  std::vector<SharedTokens> prompt_ids;               // of each prompt, where answers tell them
  bool cache_info = false;                            // the usage tells what of each prompt was found
  std::vector<std::vector<int64_t>> cache_positions;  // of each prompt: where the request asks for its state
  std::chrono::milliseconds timeout;                  // for the whole answer, from the start on; 0: any
  std::chrono::steady_clock::time_point arrived;      // of the request
  RequestPool::TicketPtr ticket;                      // whether anybody waits for the answer when it begins
  std::function<void(size_t complete, size_t cut)> count_calls;  // of an answer that has ended; may be empty
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(GenerationPlan plan, std::shared_ptr<Responder> responder);

  // Submits the jobs, one an answer, and answers. Any thread.
  void start(std::vector<Job> jobs);

 private:
  struct Answer {
    AnswerPart part;  // unsent text of a stream; everything of a whole answer
    AnswerParser parser;
    int64_t generated = 0, reasoning = 0;  // tokens
    int64_t drafts = 0, drafts_accepted = 0;
    int64_t cached = 0;                   // tokens of its prompt that were found in the prefix cache
    PrefixMiss miss = PrefixMiss::kNone;  // why no more was, and
    int64_t diverged_at = -1;             // the token from which on others went another way
    size_t text_characters = 0;           // of the answer so far
    bool opened = false;                  // its stream has begun
    bool text_ended = false;
    TokenId last = -1;
  };
  struct Arrival {
    size_t index;
    TokenEvent event;
  };

  void begin(const ApiResult<std::vector<JobId>>& accepted);
  void begin_stream();
  void on_event(size_t index, const TokenEvent& event);  // the service's thread
  void take_arrivals();
  void take(Answer& answer, const TokenEvent& event);
  void take_begun(Answer& answer, const TokenEvent::Begun& begun);
  void take_token(Answer& answer, const TokenEvent::Token& token);
  void take_end(Answer& answer, const TokenEvent::Ended& end);
  void append_text(Answer& answer, const TokenEvent::Token& token);
  static void end_text(Answer& answer, FinishReason finish);
  Json stop_of(const Answer& answer, const TokenEvent::Ended& end) const;
  void report_token(Answer& answer, const TokenEvent::Token& token);
  void send_piece(Answer& answer, std::string& events);
  // What is told of an answer's prompt: null if nothing is.
  PromptReport* report_of(const Answer& answer);
  bool waits_for_report(const Answer& answer);
  void write_reports();
  void send_report(size_t prompt);
  void complete_if_over();
  void complete();
  // Ends the request with an error; what still runs of it is cancelled.
  void fail(ApiError error);
  void cancel_jobs();
  Usage usage() const;
  UsageNow usage_now() const {
    return [this] { return usage(); };
  }
  Json cache_info() const;
  void fill_record();

  GenerationPlan plan_;
  std::shared_ptr<Responder> responder_;
  std::vector<JobId> jobs_;
  std::vector<Answer> answers_;
  size_t running_ = 0;
  bool begun_ = false;    // the jobs were accepted, and the client is listening
  bool writing_ = false;  // write_reports() is under way
  bool over_ = false;     // answered, failed, or nobody listens any more

  std::mutex mutex_;
  std::vector<Arrival> arrivals_;  // events that the executor has not seen yet
};

}  // namespace quire::server
