#pragma once

#include <functional>

#include "quire/engine_config.h"

namespace quire {

// How one prompt of a reference compared, run in one way.
struct VerifyResult {
  int prompt = 0;          // its number in the reference
  int num_tokens = 0;      // of the prompt
  int chunk_size = 0;      // tokens a step; 0: the prompt in one piece
  int side_by_side = 1;    // sequences that were computed in the same steps
  double error = 0;        // largest |difference| of a prompt logit over the largest |logit| of the prompt
  double limit = 0;        // of error
  double rms = 0;          // norm of the differences over the norm of the logits
  double rms_limit = 0;    // of rms; 0: there is none
  int rerouted = 0;        // positions left out of error, and steps, see verify()
  int argmax_equal = 0;    // greedy steps with the reference's token
  int argmax_excused = 0;  // others, where two tokens are too close to tell apart, or experts may be others
  int num_steps = 0;
  bool rms_passed() const { return rms_limit == 0 || rms <= rms_limit; }
  bool passed() const { return error <= limit && rms_passed() && argmax_equal + argmax_excused == num_steps; }
};

// Runs the paged engine over the prompts and greedy continuations of config.model's expected.safetensors
// (written by Hugging Face transformers in float32), teacher-forced, and compares the logits of every prompt
// position and the most likely token at every greedy step. Four times: in one chunk; in chunks of 7 tokens;
// token by token, which is the decode path, with graphs where there are any; and token by token with several
// sequences side by side, one begun some steps after the other.
// Calls `on_result` for each. Where a router has two experts nearly equal, 16-bit numbers may make it take
// the other, and the logits there have nothing to do with the reference: in a model of routed experts,
// computed in 16 bits, up to one position in eight may be beyond the limit, and one greedy step of a prompt.
// Where products round their inputs, limits are those of `activations` in tolerance.json beside the
// reference: {"logits", "rms", "gap"}. Error when the folder is no such model. Other settings of `config`
// apply as they are.
bool verify(const EngineConfig& config, const std::function<void(const VerifyResult&)>& on_result);

}  // namespace quire
