#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "dialects/argument_reader.h"
#include "dialects/output_format.h"
#include "dialects/pattern.h"

namespace quire::dialects {

// Reads one run of calls, byte by byte, along all forms of its dialect that the text may still have: an
// automaton whose states are places in the patterns. Where one of them has a value, its reader takes over.
class CallRun {
 public:
  // Takes what a run holds: what a call begins with has its name, and as its id what the model wrote for $I.
  using Sink = std::function<void(ToolCallDelta)>;

  // Behind `trigger`; empty: at the start of content. tools: as parameters_of takes them.
  CallRun(const CompiledDialect& dialect, std::string_view trigger, const OrderedJson* tools, Sink sink);

  ReadStatus push(char c);  // kEnd: this byte ends the run

  // The last byte, and with it all before it, belongs to calls that the sink has got.
  bool consumed() const { return consumed_; }
  bool has_calls() const { return has_calls_; }
  // In a call that the sink has got, and that has not ended.
  bool in_call() const { return at_.begun && (at_.part != CompiledForm::kCall || !at_.at_end()); }
  // How many bytes before a byte that was refused are the beginning of a literal.
  std::size_t partial() const;
  // Tags that may still come behind the run, and are not content.
  std::vector<std::string_view> closers() const;

 private:
  struct Position {
    const CompiledForm* form;
    CompiledForm::Part part = CompiledForm::kBegin;
    std::size_t index = 0;
    std::size_t offset = 0;  // in a literal
    std::string name = {}, id = {}, key = {}, typed = {};
    bool begun = false;         // the sink has got the call
    bool has_argument = false;  // of those given one by one

    const Pattern& pattern() const { return form->parts[part]; }
    bool at_end() const { return index == pattern().size(); }
  };
  void step(Position at, char c);
  void step_on(Position at, char c);
  void step_literal(Position at, char c);
  void step_captured(Position at, std::string Position::*text, bool taken, char c);
  void keep(Position at);
  void start_value(Position at, char c);
  ReadStatus push_value(char c);
  void add_arguments(std::string json);
  void complete(const Position& at);

  const CompiledDialect& dialect_;
  const OrderedJson* const tools_;
  const Sink sink_;
  const bool tagged_;
  std::vector<Position> positions_, next_;
  Position at_;                            // of the value that is read, or of what was completed last
  std::unique_ptr<ArgumentReader> value_;  // that is read
  bool has_calls_ = false;                 // the sink has got one
  bool consumed_ = false;
  bool done_ = false;
};

}  // namespace quire::dialects
