/* What the formats of the API make of an answer that is known beforehand (formats.h):
 * completions, chats, and those of llama-server. Expected values are written by hand from the
 * published descriptions of the APIs (OpenAI's, vLLM's, llama-server's). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/serve/formats.h"

#define X16  "xxxxxxxxxxxxxxxx"
#define X128 X16 X16 X16 X16 X16 X16 X16 X16

static void completions(void **state) {
#define P "/v1/completions"
    static const row rows[] = {
        SAYS(P,
             "{'object': 'text_completion', 'model': 'letters', 'choices': [{'index': 0, 'text': "
             "'AAA', 'logprobs': null, 'finish_reason': 'length', 'stop_reason': null, "
             "'token_ids': '-', 'prompt_logprobs': '-'}], 'usage': {'prompt_tokens': 2, "
             "'completion_tokens': 3, 'total_tokens': 5}}",
             "'prompt': 'ab', 'max_tokens': 3, " A),
        /* The prompt alone, scored. */
        SAYS(P,
             "{'choices': [{'text': 'ab', 'finish_reason': 'length', 'logprobs': {'tokens': ['a', "
             "'b'], 'token_logprobs': [null, '*'], 'top_logprobs': [null, '*'], 'text_offset': [0, "
             "1]}}], 'usage': {'prompt_tokens': 2, 'completion_tokens': 0, 'total_tokens': 2}}",
             "'prompt': 'ab', 'max_tokens': 0, 'echo': true, 'logprobs': 0, " A),
        SAYS(P,
             "{'choices': [{'text': 'abAA', 'logprobs': {'tokens': ['a', 'b', 'A', 'A'], "
             "'token_logprobs': [null, '*', '*', '*'], 'text_offset': [0, 1, 2, 3]}}]}",
             "'prompt': 'ab', 'max_tokens': 2, 'echo': true, 'logprobs': 2, " A),
        SAYS(P,
             "{'choices': [{'text': 'AA', 'logprobs': {'tokens': ['token_id:33', 'token_id:33'], "
             "'text_offset': [0, 1]}}]}",
             "'prompt': 'ab', 'max_tokens': 2, 'logprobs': 1, 'return_tokens_as_token_ids': true, "
             "" A),
        /* Two prompts, two choices each. */
        SAYS(P,
             "{'choices': [{'index': 0, 'text': 'aA'}, {'index': 1, 'text': 'aA'}, {'index': 2, "
             "'text': 'bcA'}, {'index': 3, 'text': 'bcA'}], 'usage': {'prompt_tokens': 3, "
             "'completion_tokens': 4, 'total_tokens': 7}}",
             "'prompt': ['a', 'bc'], 'n': 2, 'echo': true, 'max_tokens': 1, " A),
        SAYS(P, "{'choices': [{'text': 'AA'}], 'usage': {'completion_tokens': 6}}",
             "'prompt': 'ab', 'best_of': 3, 'max_tokens': 2, " A),
        SAYS(P,
             "{'choices': [{'text': 'AA', 'finish_reason': 'stop', 'stop_reason': 'B'}], 'usage': "
             "{'completion_tokens': 3}}",
             "'prompt': 'ab', 'stop': ['C', 'B'], 'guided_regex': 'AABA'"),
        SAYS(P, "{'choices': [{'text': 'AAB', 'finish_reason': 'stop', 'stop_reason': 'B'}]}",
             "'prompt': 'ab', 'stop': 'B', 'include_stop_str_in_output': true, 'guided_regex': "
             "'AABA'"),
        SAYS(P, "{'choices': [{'text': 'AA', 'finish_reason': 'stop', 'stop_reason': 34}]}",
             "'prompt': 'ab', 'stop_token_ids': [34], 'guided_regex': 'AABA'"),
        SAYS(P,
             "{'choices': [{'text': 'AA', 'token_ids': [33, 33], 'prompt_token_ids': [65, 66]}]}",
             "'prompt': 'ab', 'max_tokens': 2, 'return_token_ids': true, " A),
        SAYS(P,
             "{'choices': [{'prompt_logprobs': [null, {'66': {'logprob': '*', 'decoded_token': "
             "'b'}}]}]}",
             "'prompt': 'ab', 'max_tokens': 1, 'prompt_logprobs': 1, " A),
        SAYS(P,
             "[{'choices': [{'index': 0, 'text': 'ab', 'finish_reason': null, 'stop_reason': "
             "'-'}], 'usage': null}, {'choices': [{'text': 'A', 'finish_reason': null}]}, "
             "{'choices': [{'text': '', 'finish_reason': 'length', 'stop_reason': null}], 'usage': "
             "null}, {'choices': [], 'usage': {'prompt_tokens': 2, 'completion_tokens': 1}}, "
             "'[DONE]']",
             "'prompt': 'ab', 'max_tokens': 1, 'stream': true, 'echo': true, 'stream_options': "
             "{'include_usage': true}, " A),
        SAYS(P,
             "[{'choices': [{'text': 'A'}], 'usage': {'completion_tokens': 1}}, {'choices': "
             "[{'text': '', 'finish_reason': 'length'}], 'usage': {'completion_tokens': 1}}, "
             "'[DONE]']",
             "'prompt': 'ab', 'max_tokens': 1, 'stream': true, 'stream_options': "
             "{'continuous_usage_stats': true}, " A),
        SAYS(P, "{'usage': {'completion_tokens': 16}}", "'prompt': 'ab', " A),
        SAYS(P, "{'choices': [{'logprobs': null}]}",
             "'prompt': 'ab', 'max_tokens': 1, 'n_probs': 0, 'thinking_budget': -1"),
        SAYS(P,
             "{'choices': [{'logprobs': {'top_logprobs': [{'A': '*', '!': '-'}]}, "
             "'prompt_logprobs': [null, {'66': '*'}]}]}",
             "'prompt': 'ab', 'max_tokens': 1, 'n_probs': 1, 'prompt_logprobs': 0, " A),
        SAYS(P,
             "{'choices': [{'logprobs': {'top_logprobs': [null, '*', '*']}, 'prompt_logprobs': "
             "[null, {'#': 1, '66': {'rank': 19}}]}]}",
             "'prompt': 'ab', 'max_tokens': 1, 'echo': true, 'logprobs': 3, 'prompt_logprobs': 0, "
             "" A),
        /* The end of the prompt; only one id; no A after A; no end before two tokens. */
        SAYS(P, "{'choices': [{'text': 'cdA'}], 'usage': {'prompt_tokens': 2}}",
             "'prompt': 'abcd', 'truncate_prompt_tokens': 2, 'echo': true, 'max_tokens': 1, " A),
        SAYS(P, "{'usage': {'prompt_tokens': 510, 'completion_tokens': 2}}",
             "'prompt': '" X128 X128 X128 X128 X128
             "', 'truncate_prompt_tokens': -1, 'max_tokens': 2, " A),
        SAYS(P, "{'choices': [{'text': 'BBB'}]}",
             "'prompt': 'ab', 'allowed_token_ids': [34], 'max_tokens': 3, " A),
        SAYS(P, "{'choices': [{'text': 'ABAB'}]}",
             "'prompt': 'ab', 'bad_words': ['AA'], 'max_tokens': 4, 'logit_bias': {'33': 100, "
             "'34': 60}"),
        SAYS(P, "{'choices': [{'text': 'AA', 'finish_reason': 'stop', 'stop_reason': null}]}",
             "'prompt': 'ab', 'min_tokens': 2, 'max_tokens': 9, 'logit_bias': {'33': 60, '95': "
             "100}"),
        SAYS(P, "{'choices': [{'text': '', 'finish_reason': 'stop'}]}",
             "'prompt': 'ab', 'max_tokens': 9, 'logit_bias': {'33': 60, '95': 100}"),
        SAYS(P, "{'choices': [{'text': '\\n\\n', 'finish_reason': 'length'}]}",
             "'prompt': 'ab', 'max_tokens': 2, 'ignore_eos': true, 'logit_bias': {'33': 60, '95': "
             "100}"),
        SAYS(P, "{'choices': [{'text': 'BB'}]}",
             "'prompt': 'ab', 'max_tokens': 2, 'logit_bias': [['A', false], ['B', 100]]"),
        SAYS(P, "{'choices': [{'text': 'BB'}]}",
             "'prompt': 'ab', 'max_tokens': 2, 'logit_bias': {'33': -100, 'B': 100}"),
        REFUSES(P, "{'error': {'param': 'max_tokens', 'type': 'invalid_request_error'}}",
                "'prompt': 'ab', 'max_tokens': 0"),
        REFUSES(P, "{'error': {'param': 'best_of', 'message': \'~less than'}}",
                "'prompt': 'ab', 'best_of': 1, 'n': 2"),
        REFUSES(P, "{'error': {'param': 'best_of', 'message': '~cannot be streamed'}}",
                "'prompt': 'ab', 'best_of': 2, 'stream': true"),
        REFUSES(P, "{'error': {'param': 'stream_options'}}",
                "'prompt': 'ab', 'stream_options': {'include_usage': true}"),
        REFUSES(P, "{'error': {'param': 'logprobs', 'message': '~is 21'}}",
                "'prompt': 'ab', 'logprobs': 21"),
        REFUSES(P, "{'error': {'param': 'logprobs'}}", "'prompt': 'ab', 'logprobs': -1"),
        REFUSES(P, "{'error': {'param': 'logprobs'}}", "'prompt': 'ab', 'logprobs': 'all'"),
        REFUSES(P, "{'error': {'param': 'echo', 'message': '~exclude each other'}}",
                "'prompt': 'ab', 'suffix': 'c', 'echo': true"),
        REFUSES(P, "{'error': {'param': 'truncate_prompt_tokens', 'message': '~is 0'}}",
                "'prompt': 'ab', 'truncate_prompt_tokens': 0"),
        REFUSES(P, "{'error': {'param': 'allowed_token_ids'}}",
                "'prompt': 'ab', 'allowed_token_ids': []"),
        REFUSES(P, "{'error': {'param': 'allowed_token_ids'}}",
                "'prompt': 'ab', 'allowed_token_ids': [33, 96]"),
        REFUSES(P, "{'error': {'param': 'allowed_token_ids'}}",
                "'prompt': 'ab', 'allowed_token_ids': [-1]"),
        REFUSES(P, "{'error': {'param': 'bad_words'}}", "'prompt': 'ab', 'bad_words': ['']"),
        REFUSES(P, "{'error': {'param': 'bad_words'}}", "'prompt': 'ab', 'bad_words': 'a'"),
        REFUSES(P, "{'error': {'param': 'logit_bias', 'message': '~vocabulary of 96'}}",
                "'prompt': 'ab', 'logit_bias': {'96': 1}"),
        REFUSES(P, "{'error': {'param': 'logit_bias'}}",
                "'prompt': 'ab', 'logit_bias': {'1': 'x'}"),
        REFUSES(P, "{'error': {'param': 'logit_bias'}}",
                "'prompt': 'ab', 'logit_bias': {'1': 1e10}"),
        REFUSES(P, "{'error': {'param': 'stop'}}", "'prompt': 'ab', 'stop': ['']"),
        REFUSES(P, "{'error': {'param': 'stop_token_ids'}}",
                "'prompt': 'ab', 'stop_token_ids': [96]"),
        REFUSES(P, "{'error': {'param': 'stop_token_ids'}}", "'prompt': 'ab', 'stop_token_ids': 1"),
        REFUSES(P, "{'error': {'message': '~asks for 2 forms'}}",
                "'prompt': 'ab', 'guided_regex': 'a', 'guided_choice': ['b']"),
        REFUSES(P, "{'error': {'param': 'response_format'}}",
                "'prompt': 'ab', 'response_format': {'type': 'xml'}"),
        REFUSES(P, "{'error': {'param': 'response_format', 'message': '~needs a schema'}}",
                "'prompt': 'ab', 'response_format': {'type': 'json_schema'}"),
        REFUSES(P, "{'error': {'message': '~not supported here'}}",
                "'prompt': 'ab', 'structured_outputs': {'shape': 'a'}"),
        REFUSES(P, "{'error': {'param': 'dry_sequence_breakers'}}",
                "'prompt': 'ab', 'dry_multiplier': 1, 'dry_sequence_breakers': ['']"),
        SAYS(P, "{'choices': [{'text': 'AB', 'finish_reason': 'stop'}]}",
             "'prompt': 'ab', 'structured_outputs': {'regex': 'AB'}"),
        SAYS(P, "{'choices': [{'text': 'AB'}]}",
             "'prompt': 'ab', 'structured_outputs': {'choice': ['AB']}"),
        SAYS(P, "{'choices': [{'text': 'AB'}]}",
             "'prompt': 'ab', 'structured_outputs': {'grammar': 'root ::= \\'AB\\''}"),
        SAYS(P, "{'choices': [{'text': '~AB'}]}",
             "'prompt': 'ab', 'structured_outputs': {'json': {'const': 'AB'}}"),
        SAYS(P, "{'choices': [{'text': '{}'}]}",
             "'prompt': 'ab', 'max_tokens': 9, 'response_format': {'type': 'json_object'}, "
             "'logit_bias': {'91': 60, '93': 100}"),
        /* If all tokens are about equally likely, each of these options leaves the most likely
         * one. */
        SAYS(P, "{'choices': [{'text': 'AAAAAAAA'}]}",
             "'prompt': 'ab', 'max_tokens': 8, 'temperature': 100, 'top_k': 1, " A),
        SAYS(P, "{'choices': [{'text': 'AAAAAAAA'}]}",
             "'prompt': 'ab', 'max_tokens': 8, 'temperature': 100, 'top_p': 0, " A),
        SAYS(P, "{'choices': [{'text': 'AAAAAAAA'}]}",
             "'prompt': 'ab', 'max_tokens': 8, 'temperature': 100, 'min_p': 1, " A),
        SAYS(P, "{'choices': [{'text': 'AB'}]}",
             "'prompt': 'ab', 'structured_outputs': {'regex': 'AB', 'json': null, 'choice': "
             "false}"),
        REFUSES(P, "{'error': {'param': 'thinking_budget', 'message': '~in chats only'}}",
                "'prompt': 'ab', 'guided_regex': 'a', 'thinking_budget': 0"),
        REFUSES(P, "{'error': {'param': 'dry_sequence_breakers', 'message': '~1 to 255 bytes'}}",
                "'prompt': 'ab', 'dry_multiplier': 1, 'dry_sequence_breakers': ['" X128 X128 "']"),
        REFUSES(P, "{'error': {'param': 'suffix'}}", "'prompt': ['ab'], 'suffix': 'c'"),
        REFUSES(P, "{'error': {'param': 'prompt', 'message': '~is empty'}}",
                "'prompt': [], 'suffix': 'c'"),
        REFUSES(P, "{'error': {'param': 'prompt', 'message': '~list of strings'}}",
                "'prompt': [65], 'suffix': 'c'"),
        REFUSES(P, "{'error': {'param': 'thinking_budget'}}",
                "'prompt': 'ab', 'thinking_budget': -2"),
        SAYS(P, "{'id': '~cmpl-'}", "'prompt': 'ab', 'max_tokens': 1, 'repetition_penalty': 100"),
        REFUSES(P, "{'error': {'param': 'repetition_penalty'}}",
                "'prompt': 'ab', 'repetition_penalty': 100.5"),
        REFUSES(P, "{'error': {'param': 'temperature'}}", "'prompt': 'ab', 'temperature': -0.5"),
        REFUSES(P, "{'error': {'param': 'top_p'}}", "'prompt': 'ab', 'top_p': 1.5"),
        REFUSES(P, "{'error': {'param': 'frequency_penalty'}}",
                "'prompt': 'ab', 'frequency_penalty': 2.5"),
        REFUSES(P, "{'error': {'param': 'n'}}", "'prompt': 'ab', 'n': 129"),
        REFUSES(P, "{'error': {'param': 'n'}}", "'prompt': 'ab', 'n': 0"),
        {P, "{'prompt': 'a', 'model': 'x'}", 404, "{'error': {'code': 'model_not_found'}}"},
        REFUSES(P, "{'error': {'param': 'min_tokens'}}",
                "'prompt': 'ab', 'max_tokens': 2, 'min_tokens': 3"),
    };
    (void)state;
    CHECK(rows);
#undef P
}

static void chat(void **state) {
#define P "/v1/chat/completions"
    static const row rows[] = {
        SAYS(P,
             "{'object': 'chat.completion', 'model': 'letters', 'choices': [{'index': 0, "
             "'message': {'role': 'assistant', 'content': 'AA', 'refusal': null, 'tool_calls': "
             "'-', 'reasoning_content': '-'}, 'logprobs': null, 'finish_reason': 'length', "
             "'token_ids': '-'}], 'usage': {'prompt_tokens': 9, 'completion_tokens': 2, "
             "'total_tokens': 11, 'prompt_tokens_details': {'cached_tokens': 0}, "
             "'completion_tokens_details': {'reasoning_tokens': 0}}}",
             HI ", 'max_tokens': 2, " A),
        /* The newer name of the limit takes precedence. */
        SAYS(P, "{'choices': [{'message': {'content': 'A'}}]}",
             HI ", 'max_tokens': 3, 'max_completion_tokens': 1, " A),
        SAYS(P, "{'choices': [{'message': {'content': 'AB'}, 'finish_reason': 'stop'}]}",
             HI ", 'guided_regex': 'AB', " A),
        SAYS(P,
             "{'choices': [{'logprobs': {'content': [{'token': 'A', 'logprob': '*', 'bytes': [65], "
             "'top_logprobs': ['*', '*']}], 'refusal': null}}]}",
             HI ", 'max_tokens': 1, 'logprobs': true, 'top_logprobs': 2, " A),
        SAYS(P, "{'choices': [{'logprobs': {'content': [{'top_logprobs': []}]}}]}",
             HI ", 'max_tokens': 1, 'logprobs': true, " A),
        SAYS(P,
             "{'choices': [{'index': 0, 'message': {'content': 'A'}}, {'index': 1, 'message': "
             "{'content': 'A'}}], 'usage': {'prompt_tokens': 9, 'completion_tokens': 2}}",
             HI ", 'max_tokens': 1, 'n': 2, " A),
        SAYS(P,
             "{'choices': [{'message': {'reasoning_content': 'AA', 'reasoning': 'AA', 'content': "
             "'AB'}, 'finish_reason': 'stop'}], 'usage': {'prompt_tokens': 16}}",
             HI ", 'guided_regex': 'AB', " THINK A),
        SAYS(P, "{'choices': [{'message': {'reasoning_content': '-', 'content': 'AB'}}]}",
             HI ", 'guided_regex': 'AB', 'include_reasoning': false, " THINK A),
        SAYS(P,
             "{'choices': [{'message': {'content': null, 'tool_calls': [{'id': '~call_', 'type': "
             "'function', 'function': {'name': 'f', 'arguments': '~\\'x\\''}, 'index': '-'}]}, "
             "'finish_reason': 'tool_calls'}], 'usage': {'prompt_tokens': 11}}",
             HI ", " TOOLS
                ", 'tool_choice': {'type': 'function', 'function': {'name': 'f'}}, " CALL),
        SAYS(P, "{'choices': [{'message': {'tool_calls': ['*']}}]}",
             HI ", " TOOLS ", 'tool_choice': 'required', 'parallel_tool_calls': false, " CALL),
        SAYS(P, "{'choices': [{'message': {'content': 'A'}}], 'usage': {'prompt_tokens': 9}}",
             HI ", " TOOLS ", 'tool_choice': 'none', 'max_tokens': 1, " A),
        /* [user]Hi[assistant]x has 20 characters. */
        SAYS(P, "{'usage': {'prompt_tokens': 20}}",
             "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "
             "'x'}], 'continue_final_message': true, 'add_generation_prompt': false, 'max_tokens': "
             "1"),
        SAYS(P,
             "{'prompt_token_ids': [59, 85, 83, 69, 82, 61, 40, 73, 30], 'choices': [{'token_ids': "
             "[33]}]}",
             HI ", 'max_tokens': 1, 'return_token_ids': true, " A),
        SAYS(P,
             "[{'object': 'chat.completion.chunk', 'choices': [{'index': 0, 'delta': {'role': "
             "'assistant', 'content': ''}, 'finish_reason': null}], 'usage': null}, {'choices': "
             "[{'delta': {'content': 'A', 'role': '-'}, 'finish_reason': null}]}, {'choices': "
             "[{'delta': {'content': '-'}, 'finish_reason': 'length'}], 'usage': null}, "
             "{'choices': [], 'usage': {'prompt_tokens': 9, 'completion_tokens': 1}}, '[DONE]']",
             HI ", 'max_tokens': 1, 'stream': true, 'stream_options': {'include_usage': true}, " A),
        /* What is at the end is kept; what the template leaves out is not required of it. */
        SAYS(P, "{'usage': {'prompt_tokens': 21}}",
             "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "
             "'x '}], 'continue_final_message': true, 'add_generation_prompt': false, "
             "'max_tokens': 1"),
        SAYS(P, "{'usage': {'prompt_tokens': 21}}",
             "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "
             "' x'}], 'continue_final_message': true, 'add_generation_prompt': false, "
             "'max_tokens': 1"),
        SAYS(P, "{'usage': {'prompt_tokens': 19}}",
             "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "
             "''}], 'continue_final_message': true, 'add_generation_prompt': false, 'max_tokens': "
             "1"),
        /* Two parts are two lines. */
        SAYS(P, "{'usage': {'prompt_tokens': 10}}",
             "'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'H'}, {'type': "
             "'text', 'text': 'i'}]}], 'max_tokens': 1"),
        /* A template that does not know "developer" gets "system": [system]S[user]Hi> */
        SAYS(P, "{'usage': {'prompt_tokens': 18}}",
             "'messages': [{'role': 'developer', 'content': 'S'}, {'role': 'user', 'content': "
             "'Hi'}], 'max_tokens': 1"),
        SAYS(P, "{'usage': {'prompt_tokens': 20}}",
             "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "
             "null}], 'max_tokens': 1"),
        REFUSES(P, "{'error': {'param': 'chat_template_kwargs', 'message': '~an object'}}",
                HI ", 'chat_template_kwargs': 3"),
        REFUSES(P, "{'error': {'param': 'messages', 'message': '~one at a time'}}",
                HI ", 'chat_template_kwargs': {'boom': 'one at a time'}"),
        REFUSES(P, "{'error': {'param': 'messages', 'message': '~list of 1 to'}}",
                "'messages': []"),
        REFUSES(P, "{'error': {'param': 'messages[0]'}}",
                "'messages': [{'role': 'user', 'content': null}]"),
        SAYS(P, "{'usage': {'prompt_tokens': 16}}",
             HI ", 'reasoning_effort': 'high', 'max_tokens': 1"),
        SAYS(P, "{'usage': {'prompt_tokens': 9}}",
             HI ", 'reasoning_effort': 'none', 'max_tokens': 1"),
        SAYS(P, "{'usage': {'prompt_tokens': 16}}",
             HI ", 'enable_thinking': true, 'max_tokens': 1"),
        SAYS(P, "{'choices': [{'message': {'content': 'A'}}]}",
             HI ", " TOOLS ", 'tool_choice': 'auto', 'max_tokens': 1, 'thinking_budget_tokens': "
                "-1, " A),
        REFUSES(P, "{'error': {'param': 'messages', 'message': '~cannot be continued'}}",
                "'messages': [{'role': 'assistant', 'content': 'x'}], 'continue_final_message': "
                "true, 'add_generation_prompt': false, 'chat_template_kwargs': {'quiet': true}"),
        SAYS(P,
             "[{'prompt_token_ids': [59, 85, 83, 69, 82, 61, 40, 73, 30], 'choices': "
             "[{'token_ids': []}]}, {'prompt_token_ids': '-', 'choices': [{'token_ids': [33]}]}, "
             "'...', '[DONE]']",
             HI ", 'max_tokens': 1, 'stream': true, 'return_token_ids': true, " A),
        SAYS(P, "{'choices': [{'message': {'tool_calls': [{'function': {'name': 'f'}}]}}]}",
             HI ", " TOOLS ", 'tool_choice': {'type': 'allowed_tools', 'allowed_tools': {'mode': "
                "'required', 'tools': [{'type': 'function', 'function': {'name': 'f'}}]}}, " CALL),
        SAYS(P, "{'choices': [{'message': {'content': 'A', 'tool_calls': '-'}}]}",
             HI ", " TOOLS ", 'max_tokens': 1, 'tool_choice': {'type': 'allowed_tools', "
                "'allowed_tools': {'mode': 'auto', 'tools': [{'type': 'function', 'function': "
                "{'name': 'f'}}]}}, " A),
        REFUSES(P, "{'error': {'param': 'tool_choice', 'message': '~no tool g'}}",
                HI ", " TOOLS ", 'tool_choice': {'type': 'allowed_tools', 'allowed_tools': "
                   "{'mode': 'auto', 'tools': [{'type': 'function', 'function': {'name': 'g'}}]}}"),
        REFUSES(P, "{'error': {'param': 'tool_choice', 'message': '~auto or required'}}",
                HI ", " TOOLS ", 'tool_choice': {'type': 'allowed_tools', 'allowed_tools': "
                   "{'mode': 'some', 'tools': []}}"),
        REFUSES(P, "{'error': {'param': 'tool_choice', 'message': '~no tool at all'}}",
                HI ", " TOOLS ", 'tool_choice': {'type': 'allowed_tools', 'allowed_tools': "
                   "{'mode': 'auto', 'tools': []}}"),
        REFUSES(P, "{'error': {'param': 'tools', 'message': '~must be an object'}}",
                HI ", 'tools': [{'type': 'function', 'function': {'name': 'f', 'parameters': 3}}]"),
        REFUSES(P, "{'error': {'param': 'tools', 'message': '~both called'}}",
                HI ", 'tools': [{'type': 'function', 'function': {'name': 'f'}}, {'type': "
                   "'function', 'function': {'name': 'f', 'description': 'd'}}]"),
        REFUSES(P, "{'error': {'param': 'chat_template_kwargs'}}",
                HI ", 'chat_template_kwargs': {'messages': []}"),
        REFUSES(P, "{'error': {'param': 'logprobs'}}", HI ", 'logprobs': 1"),
        REFUSES(P, "{'error': {'param': 'top_logprobs'}}", HI ", 'top_logprobs': 1"),
        REFUSES(P, "{'error': {'param': 'max_tokens'}}", HI ", 'max_tokens': 0"),
        REFUSES(P, "{'error': {'param': 'n_predict'}}", HI ", 'n_predict': 0"),
        REFUSES(P, "{'error': {'param': 'max_completion_tokens'}}",
                HI ", 'max_completion_tokens': 0"),
        SAYS(P "/input_tokens", "{'input_tokens': 9}", HI),
        SAYS(P "/input_tokens", "{'input_tokens': 11}", HI ", " TOOLS),
        REFUSES(P "/input_tokens", "{'error': {'param': 'messages'}}", "'max_tokens': 1"),
        REFUSES(P, "{'error': {'param': 'continue_final_message'}}",
                HI ", 'continue_final_message': true, 'add_generation_prompt': true"),
        REFUSES(P, "{'error': {'param': 'stream_options'}}",
                HI ", 'stream_options': {'include_usage': true}"),
        REFUSES(P, "{'error': {'param': 'tool_choice', 'message': '~no tool g'}}",
                HI ", " TOOLS ", 'tool_choice': {'type': 'function', 'function': {'name': 'g'}}"),
        REFUSES(P, "{'error': {'param': 'tool_choice'}}", HI ", 'tool_choice': 'required'"),
        REFUSES(P, "{'error': {'param': 'tools', 'message': '~must be 1 to 128 of'}}",
                HI ", 'tools': [{'type': 'function', 'function': {'name': 'f g'}}]"),
        REFUSES(P, "{'error': {'param': 'messages'}}", "'max_tokens': 1"),
        REFUSES(P, "{'error': {'param': 'enable_thinking'}}", HI ", 'enable_thinking': 1"),
        REFUSES(P, "{'error': {'param': 'reasoning_format'}}", HI ", 'reasoning_format': 'x'"),
    };
    (void)state;
    CHECK(rows);
#undef P
}

/* The format of llama-server. */
static void native(void **state) {
#define P "/completion"
    static const row rows[] = {
        SAYS(P,
             "{'index': 0, 'content': 'AA', 'tokens': [], 'stop': true, 'model': 'letters', "
             "'tokens_predicted': 2, 'tokens_evaluated': 2, 'generation_settings': {'n_predict': "
             "2, 'temperature': 0.8, 'top_k': 40, 'top_p': 0.95, 'min_p': 0.05, 'seed': 7, "
             "'ignore_eos': false, 'stop': ['C'], 'logit_bias': [{'token': 33, 'bias': 100}]}, "
             "'prompt': 'ab', 'has_new_line': false, 'truncated': false, 'stop_type': 'limit', "
             "'stopping_word': '', 'completion_probabilities': '-', 'timings': {'prompt_n': 2, "
             "'predicted_n': 2, 'predicted_per_second': '>0', 'predicted_per_token_ms': '>0'}}",
             "'prompt': 'ab', 'n_predict': 2, 'seed': 7, 'stop': ['C'], " A),
        SAYS(P, "{'content': 'AA', 'stop_type': 'word', 'stopping_word': 'B', 'truncated': false}",
             "'prompt': 'ab', 'stop': ['B'], 'guided_regex': 'AABA'"),
        SAYS(P, "{'content': 'AB', 'stop_type': 'eos'}", "'prompt': 'ab', 'guided_regex': 'AB'"),
        SAYS(P, "{'content': 'AB', 'stop_type': 'eos'}",
             "'prompt': 'ab', 'guided_regex': 'AB', 'ignore_eos': true"),
        SAYS(P,
             "{'content': 'AA', 'tokens': [33, 33], 'generation_settings': {'logit_bias': "
             "[{'token': 33, 'bias': 100}, {'token': 95, 'bias': null}]}}",
             "'prompt': 'ab', 'n_predict': 2, 'return_tokens': true, 'ignore_eos': true, " A),
        SAYS(P,
             "{'content': 'AA', 'generation_settings': {'logit_bias': [{'token': 33, 'bias': "
             "60}, {'token': 95, 'bias': null}]}}",
             "'prompt': 'ab', 'n_predict': 2, 'ignore_eos': true, 'logit_bias': {'33': 60, '95': "
             "100}"),
        SAYS(P,
             "{'completion_probabilities': [{'id': 33, 'token': 'A', 'bytes': [65], "
             "'top_logprobs': [{'id': '*'}, {'id': '*'}]}]}",
             "'prompt': 'ab', 'n_predict': 1, 'n_probs': 2, " A),
        SAYS(P, "{'content': 'A', 'generation_settings/n_predict': 1, 'stop': '-', 'none': '-'}",
             "'prompt': 'ab', 'n_predict': 1, 'response_fields': ['content', "
             "'generation_settings/n_predict', 'none'], " A),
        SAYS(P, "{'content': '', 'tokens_predicted': 0, 'tokens_evaluated': 2}",
             "'prompt': 'ab', 'n_predict': 0, " A),
        SAYS(P,
             "[{'completion_probabilities': [{'id': 33}]}, {'completion_probabilities': '-', "
             "'stop': true}]",
             "'prompt': 'ab', 'n_predict': 1, 'n_probs': 1, 'stream': true, " A),
        /* A mixture of ids and texts is one prompt, a list of texts several. */
        SAYS(P, "{'prompt': 'aBc', 'tokens_evaluated': 3}",
             "'prompt': ['a', 34, 'c'], 'n_predict': 1"),
        SAYS(P, "[{'index': 0, 'prompt': 'a'}, {'index': 1, 'prompt': 'bc'}]",
             "'prompt': ['a', 'bc'], 'n_predict': 1"),
        SAYS(P,
             "[{'content': 'A', 'tokens': [33], 'stop': false, 'tokens_predicted': 1, "
             "'tokens_evaluated': 2}, {'content': '', 'tokens': [], 'stop': true, "
             "'tokens_predicted': 1, 'stop_type': 'limit'}]",
             "'prompt': 'ab', 'n_predict': 1, 'stream': true, " A),
        REFUSES(P, "{'error': {'type': 'exceed_context_size_error', 'n_prompt_tokens': 512}}",
                "'prompt': '" X128 X128 X128 X128 "', 'n_predict': 1"),
        REFUSES(P, "{'error': {'type': 'exceed_context_size_error'}}",
                "'prompt': ['a', '" X128 X128 X128 X128 "'], 'n_predict': 1"),
        SAYS("/detokenize", "{'content': 'a'}", "'tokens': [65], 'model': 'letters'"),
        REFUSES(P, "{'error': {'message': '~is missing'}}", "'n_predict': 1"),
        REFUSES(P, "{'error': {'message': '~is empty'}}", "'prompt': []"),
        REFUSES(P, "{'error': {'message': '~list of names'}}",
                "'prompt': 'ab', 'response_fields': [1]"),
        SAYS("/tokenize", "{'tokens': [65, 66]}", "'content': 'ab'"),
        SAYS("/tokenize", "{'tokens': [{'id': 65, 'piece': 'a'}]}",
             "'content': 'a', 'with_pieces': true"),
        SAYS("/tokenize",
             "{'count': 2, 'max_model_len': 512, 'tokens': [65, 66], 'token_strs': ['a', 'b']}",
             "'prompt': 'ab', 'return_token_strs': true"),
        SAYS("/tokenize", "{'count': 9, 'token_strs': '-'}", HI),
        SAYS("/tokenize", "{'count': 8}", HI ", 'add_generation_prompt': false"),
        SAYS("/detokenize", "{'content': 'ab', 'prompt': 'ab'}", "'tokens': [65, 66]"),
        REFUSES("/detokenize", "{'error': {'message': '~list of ids'}}", "'tokens': ['a']"),
        REFUSES("/detokenize", "{'error': {'message': '~list of ids'}}", "'tokens': 65"),
        SAYS("/apply-template", "{'prompt': '[user]Hi>'}", HI),
        SAYS("/apply-template", "{'prompt': '#f[user]Hi>'}", HI ", " TOOLS),
    };
    (void)state;
    CHECK(rows);
    served_check(&s, "GET", "/props", "", 200,
                 "{'default_generation_settings': {'id': 0, 'n_ctx': 512, 'is_processing': false, "
                 "'params': {'seed': 4294967295, 'temperature': 0.8, 'n_predict': -1}}, "
                 "'total_slots': 8, 'model_alias': 'letters', 'chat_template': '~[{{ m.role }}]', "
                 "'chat_template_source': 'option', 'bos_token': '', 'modalities': {'vision': "
                 "false}}");
    served_check(&s, "GET", "/slots", "", 200,
                 "[{'id': 0, 'n_ctx': 512, 'speculative': false, 'is_processing': false}, '*', "
                 "'*', '*', '*', '*', '*', {'id': 7}]");
    served_check(&s, "GET", "/tokenizer_info", "", 200,
                 "{'vocab_size': 96, 'model_max_length': 512, 'add_bos_token': false, 'bos_token': "
                 "null, 'additional_special_tokens': []}");
#undef P
}

/* Whether <s> begins a text: each API has its own default for /tokenize; ids are used unchanged.
 * A conversation whose template does not write it gets it. Special tokens are read and written if
 * requested. */
static void beginnings(void **state) {
    static const row rows[] = {
        SAYS("/v1/completions",
             "{'choices': [{'text': 'abA', 'prompt_token_ids': [96, 65, 66], 'logprobs': "
             "{'tokens': ['<s>', 'a', 'b', 'A'], 'token_logprobs': [null, '*', '*', '*']}}], "
             "'usage': {'prompt_tokens': 3}}",
             "'prompt': 'ab', 'max_tokens': 1, 'echo': true, 'logprobs': 0, 'return_token_ids': "
             "true, " A),
        SAYS("/v1/completions", "{'choices': [{'prompt_token_ids': [65, 66]}]}",
             "'prompt': 'ab', 'max_tokens': 1, 'add_special_tokens': false, 'return_token_ids': "
             "true"),
        SAYS("/v1/completions", "{'choices': [{'prompt_token_ids': [65, 66]}]}",
             "'prompt': [65, 66], 'max_tokens': 1, 'return_token_ids': true"),
        /* The first token stays when the front is cut off. */
        SAYS("/v1/completions", "{'choices': [{'prompt_token_ids': [96, 68]}]}",
             "'prompt': 'abcd', 'max_tokens': 1, 'truncate_prompt_tokens': 2, "
             "'return_token_ids': true"),
        SAYS("/v1/completions", "{'choices': [{'text': '', 'token_ids': [97, 97]}]}",
             "'prompt': 'ab', 'max_tokens': 2, 'return_token_ids': true, 'logit_bias': {'97': "
             "100}"),
        SAYS("/v1/completions", "{'choices': [{'text': '<x><x>'}]}",
             "'prompt': 'ab', 'max_tokens': 2, 'skip_special_tokens': false, 'logit_bias': "
             "{'97': 100}"),
        SAYS("/v1/completions", "{'choices': [{'text': 'ABAB'}]}",
             "'prompt': 'ab', 'bad_words': ['AA'], 'max_tokens': 4, 'logit_bias': {'33': 100, "
             "'34': 60}"),
        SAYS("/v1/chat/completions", "{'prompt_token_ids': [96, 59, '...', 30]}",
             HI ", 'max_tokens': 1, 'return_token_ids': true"),
        SAYS("/completion", "{'tokens_evaluated': 3}", "'prompt': 'ab', 'n_predict': 1"),
        SAYS("/completion", "{'tokens_evaluated': 2}",
             "'prompt': 'ab', 'n_predict': 1, 'add_special_tokens': false"),
        SAYS("/tokenize", "{'tokens': [65, 66]}", "'content': 'ab'"),
        SAYS("/tokenize", "{'tokens': [96, 65, 66]}", "'content': 'ab', 'add_special': true"),
        SAYS("/tokenize", "{'tokens': [96, 65, 66]}", "'prompt': 'ab'"),
        SAYS("/tokenize", "{'tokens': [65, 66]}", "'prompt': 'ab', 'add_special_tokens': false"),
        SAYS("/tokenize", "{'tokens': [97, 65]}", "'content': '<x>a'"),
        SAYS("/tokenize", "{'tokens': [28, 88, 30, 65]}",
             "'content': '<x>a', 'parse_special': false"),
        SAYS("/tokenize", "{'count': 10}", HI),
        SAYS("/detokenize", "{'content': '<s>a'}", "'tokens': [96, 65]"),
    };
    (void)state;
    served_end(&s); /* Signals can only have one event loop. */
    served_start(&s, path, true);
    CHECK(rows);
    served_check(&s, "GET", "/tokenizer_info", "", 200,
                 "{'vocab_size': 98, 'add_bos_token': true, 'bos_token': '<s>', "
                 "'additional_special_tokens': ['<x>']}");
    served_check(&s, "GET", "/props", "", 200, "{'bos_token': '<s>'}");
    served_end(&s);
    served_start(&s, path, false);
}

/* Of eight sampled texts, the four whose tokens are most likely on average, in that order. */
static void the_best_of_several(void **state) {
    static char answer[SERVED_REPLY_BYTES];
    double before = 0;
    (void)state;
    assert_int_equal(served_ask(&s, "POST", "/v1/completions",
                                "{\"prompt\": \"ab\", \"max_tokens\": 5, \"n\": 4, \"best_of\": 8, "
                                "\"temperature\": 1.5, \"seed\": 3, \"logprobs\": 0}",
                                answer),
                     200);
    json_t *const got = json_loads(answer, 0, NULL), *const choices = json_object_get(got,
                                                                                      "choices");
    assert_int_equal(json_array_size(choices), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *const logs = json_object_get(
            json_object_get(json_array_get(choices, i), "logprobs"), "token_logprobs");
        double sum = 0;
        for (size_t k = 0; k < json_array_size(logs); k++) {
            sum += json_number_value(json_array_get(logs, k));
        }
        sum /= (double)json_array_size(logs);
        assert_true(sum < 0 && (i == 0 || sum < before));
        before = sum;
    }
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(got, "usage"), "completion_tokens")),
        40);
    json_decref(got);
}

int main(void) {
    alarm(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completions),
        cmocka_unit_test(chat),
        cmocka_unit_test(native),
        cmocka_unit_test(beginnings),
        cmocka_unit_test(the_best_of_several),
    };
    return cmocka_run_group_tests(tests, start, end);
}
