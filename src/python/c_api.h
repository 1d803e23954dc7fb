#pragma once

#include <cstddef>
#include <cstdint>

// What python/quire/_native.py calls: plain C, so that one library serves every Python. Texts are UTF-8 with
// a length; arguments and results of many parts are JSON (json_input.h). Every function
// returns one of QuireStatus, and where that is not kQuireOk has put a line that says why into `out`. What is
// in `out` is given back with quire_free_text. Thread contract: any thread may call anything, but nobody
// while something of his is being freed.
extern "C" {

enum QuireStatus : int {
  kQuireOk = 0,
  kQuireInvalid = 1,    // the caller's mistake
  kQuireQueueFull = 2,  // later it may be taken
  kQuireStopped = 3,    // the caller asked for that
  kQuireFailed = 4,     // anything else
};

struct QuireText {
  char* data;
  std::size_t size;
};

struct QuireEngine;
struct QuireChannel;

// Bytes of a download, or 0 of 0; any thread may call it; not 0: give up.
using QuireProgress = int (*)(std::uint64_t done, std::uint64_t total);

void quire_free_text(QuireText* text);

// source: {"model", "revision", "offline", "with_weights"}. out: a directory or file.
int quire_find_model(const char* source, std::size_t size, QuireProgress progress, QuireText* out);

// config: json_input.h's, and "hf_overrides", empty or find_classifier's. stopped: is called with 0 of 0.
int quire_engine_new(const char* config, std::size_t size, QuireProgress stopped, QuireEngine** engine,
                     QuireText* out);
void quire_engine_free(QuireEngine* engine);  // aborts what is unfinished
int quire_engine_info(QuireEngine* engine, QuireText* out);
int quire_engine_stats(QuireEngine* engine, QuireText* out);

// out: int32 token ids.
int quire_encode(QuireEngine* engine, const char* text, std::size_t size, int add_special_tokens,
                 QuireText* out);
int quire_decode(QuireEngine* engine, const std::int32_t* ids, std::size_t count, int skip_special_tokens,
                 QuireText* out);
// out: {"tokens": [text or null, ...]}, as the tokenizer's file spells them.
int quire_tokens(QuireEngine* engine, const std::int32_t* ids, std::size_t count, QuireText* out);
// request: {"context", "chat_template", "of_pair", "tokenize", "cut_after"}. out: int32 token ids, or the
// text.
int quire_render_chat(QuireEngine* engine, const char* request, std::size_t size, QuireText* out);

int quire_channel_new(QuireEngine* engine, QuireChannel** channel, QuireText* out);
void quire_channel_free(QuireChannel* channel);  // aborts what is unfinished
// request: {"params", "options", "stream"}.
int quire_channel_add(QuireChannel* channel, std::int64_t tag, const char* request, std::size_t size,
                      const std::int32_t* prompt, std::size_t prompt_size, QuireText* out);
int quire_channel_flush(QuireChannel* channel, QuireText* out);
// out: a list of events; empty: nothing within that time.
int quire_channel_next(QuireChannel* channel, int milliseconds, QuireText* out);
int quire_channel_abort(QuireChannel* channel, std::int64_t tag);  // below 0: all
}
