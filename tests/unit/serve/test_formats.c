/* What the formats of the API say of an answer that is known beforehand: a bias or a grammar leaves
 * one text, each character is a token, and the template's text can be counted by hand. What is
 * expected is written by hand from the published descriptions of the APIs (OpenAI's, Anthropic's,
 * llama-server's, vLLM's, Ollama's). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/api/formats/ollama.h"
#include "unit/serve/served.h"

/* [user]Hi> has 9 tokens. The comment makes the marks of calls and of thinking known. */
static const char template[] =
    "{# <tool_call> <think></think> #}{% for t in tools or [] %}#{{ t.function.name }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}({{ m.reasoning_content }})"
    "{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}!{{ c.function.name }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}>{% endif %}{% if think %}<think>{% endif %}";

static served s;
static char path[] = "/tmp/test_formats_XXXXXX";

static int start(void **state) {
    const int fd = mkstemp(path);
    (void)state;
    if (fd < 0 || write(fd, template, sizeof template - 1) != sizeof template - 1) {
        return 1;
    }
    close(fd);
    served_start(&s, path);
    return 0;
}

static int end(void **state) {
    (void)state;
    served_end(&s);
    return unlink(path);
}

typedef struct {
    const char *path, *body;
    int status;
    const char *want;
} row;

static void check(const row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        served_check(&s, "POST", rows[i].path, rows[i].body, rows[i].status, rows[i].want);
    }
}
#define CHECK(rows) check(rows, sizeof rows / sizeof *rows)

#define A  "'logit_bias': {'33': 100}" /* AAAA ... */
#define HI "'messages': [{'role': 'user', 'content': 'Hi'}]"

#define SAYS(path, want, ...)                                                                      \
    { path, "{" __VA_ARGS__ "}", 200, want }
#define REFUSES(path, want, ...)                                                                   \
    { path, "{" __VA_ARGS__ "}", 400, want }

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
        /* The end of the prompt; only one id; not A after A; the end not before two tokens. */
        SAYS(P, "{'choices': [{'text': 'cdA'}], 'usage': {'prompt_tokens': 2}}",
             "'prompt': 'abcd', 'truncate_prompt_tokens': 2, 'echo': true, 'max_tokens': 1, " A),
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
        REFUSES(P, "{'error': {'param': 'min_tokens'}}",
                "'prompt': 'ab', 'max_tokens': 2, 'min_tokens': 3"),
    };
    (void)state;
    CHECK(rows);
#undef P
}

static void chat(void **state) {
#define P "/v1/chat/completions"
#define TOOLS                                                                                      \
    "'tools': [{'type': 'function', 'function': {'name': 'f', 'parameters': {'type': 'object', "   \
    "'properties': {'x': {'const': 1}}, 'required': ['x'], 'additionalProperties': false}}}]"
#define CALL  "'thinking_budget': 0"
#define THINK "'chat_template_kwargs': {'think': true}, 'thinking_budget': 2, "
    static const row rows[] = {
        SAYS(P,
             "{'object': 'chat.completion', 'model': 'letters', 'choices': [{'index': 0, "
             "'message': {'role': 'assistant', 'content': 'AA', 'refusal': null, 'tool_calls': "
             "'-', 'reasoning_content': '-'}, 'logprobs': null, 'finish_reason': 'length', "
             "'token_ids': '-'}], 'usage': {'prompt_tokens': 9, 'completion_tokens': 2, "
             "'total_tokens': 11, 'prompt_tokens_details': {'cached_tokens': 0}, "
             "'completion_tokens_details': {'reasoning_tokens': 0}}}",
             HI ", 'max_tokens': 2, " A),
        /* The newer name of the bound wins. */
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
        REFUSES(P, "{'error': {'param': 'logprobs'}}", HI ", 'logprobs': 1"),
        REFUSES(P, "{'error': {'param': 'top_logprobs'}}", HI ", 'top_logprobs': 1"),
        REFUSES(P, "{'error': {'param': 'max_tokens'}}", HI ", 'max_tokens': 0"),
        REFUSES(P, "{'error': {'param': 'n_predict'}}", HI ", 'n_predict': 0"),
        REFUSES(P, "{'error': {'param': 'max_completion_tokens'}}",
                HI ", 'max_completion_tokens': 0"),
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

static void responses(void **state) {
#define P  "/v1/responses"
#define IN "'input': 'Hi'"
#define FLAT                                                                                       \
    "'tools': [{'type': 'function', 'name': 'f', 'parameters': {'type': 'object', 'properties': "  \
    "{'x': {'const': 1}}, 'required': ['x'], 'additionalProperties': false}}]"
    static const row rows[] = {
        SAYS(P,
             "{'object': 'response', 'status': 'incomplete', 'completed_at': null, 'error': null, "
             "'incomplete_details': {'reason': 'max_output_tokens'}, 'output': [{'id': '~msg_', "
             "'type': 'message', 'role': 'assistant', 'status': 'incomplete', 'content': "
             "[{'type': 'output_text', 'text': 'AA', 'annotations': [], 'logprobs': []}]}], "
             "'usage': {'input_tokens': 9, 'output_tokens': 2, 'total_tokens': 11, "
             "'input_tokens_details': {'cached_tokens': 0}, 'output_tokens_details': "
             "{'reasoning_tokens': 0}}, 'store': true, 'max_output_tokens': 2, 'model': 'letters', "
             "'parallel_tool_calls': true, 'previous_response_id': null, 'instructions': null, "
             "'tools': [], 'tool_choice': 'auto', 'truncation': 'disabled', 'temperature': 1, "
             "'top_p': 1, 'metadata': {}, 'text': {'format': {'type': 'text'}, 'verbosity': "
             "'medium'}, 'reasoning': {'effort': null, 'summary': null}}",
             IN ", 'max_output_tokens': 2, " A),
        SAYS(P,
             "{'status': 'completed', 'completed_at': '*', 'incomplete_details': null, "
             "'output': [{'status': 'completed', 'content': [{'text': 'AB'}]}], "
             "'max_output_tokens': null, 'temperature': 0.5, 'metadata': {'a': 'b'}, 'user': 'u'}",
             IN ", 'guided_regex': 'AB', 'temperature': 0.5, 'metadata': {'a': 'b'}, 'user': 'u', "
                "" A),
        /* [system]S before the message. */
        SAYS(P, "{'instructions': 'S', 'usage': {'input_tokens': 18}, 'store': false}",
             IN ", 'instructions': 'S', 'max_output_tokens': 1, 'store': false"),
        SAYS(P,
             "{'output': [{'content': [{'text': 'A', 'logprobs': [{'token': 'A', 'bytes': [65], "
             "'top_logprobs': ['*']}]}]}]}",
             IN ", 'max_output_tokens': 1, 'top_logprobs': 1, 'include': "
                "['message.output_text.logprobs'], " A),
        SAYS(P,
             "{'status': 'completed', 'output': [{'type': 'function_call', 'id': '~fc_', "
             "'call_id': '~call_', 'name': 'f', 'arguments': '~\\'x\\'', 'status': 'completed'}], "
             "'tools': [{'name': 'f'}], 'tool_choice': {'name': 'f'}, 'usage': {'input_tokens': "
             "11}}",
             IN ", " FLAT ", 'tool_choice': {'type': 'function', 'name': 'f'}, " CALL),
        SAYS(P,
             "{'output': [{'type': 'reasoning', 'id': '~rs_', 'summary': [], 'content': [{'type': "
             "'reasoning_text', 'text': 'AA'}], 'encrypted_content': '-', 'status': 'completed'}, "
             "{'type': 'message', 'content': [{'text': 'AB'}]}], 'usage': {'input_tokens': 16}}",
             IN ", 'guided_regex': 'AB', " THINK A),
        SAYS(P,
             "{'output': [{'summary': [{'type': 'summary_text', 'text': 'AA'}], 'content': '-', "
             "'encrypted_content': '*'}, '*'], 'reasoning': {'summary': 'detailed'}}",
             IN ", 'guided_regex': 'AB', 'reasoning': {'summary': 'auto'}, 'include': "
                "['reasoning.encrypted_content'], " THINK A),
        /* [user]Hi[assistant](T)x[user]y> has 31 characters, and a call with its result, !f and
         * [tool]z, 9 more. */
        SAYS(P "/input_tokens", "{'object': 'response.input_tokens', 'input_tokens': 31}",
             "'input': [{'role': 'user', 'content': 'Hi'}, {'type': 'reasoning', 'summary': "
             "[{'type': 'summary_text', 'text': 'T'}]}, {'role': 'assistant', 'content': 'x'}, "
             "{'role': 'user', 'content': [{'type': 'input_text', 'text': 'y'}]}]"),
        SAYS(P "/input_tokens", "{'input_tokens': 40}",
             "'input': [{'role': 'user', 'content': 'Hi'}, {'type': 'reasoning', 'summary': "
             "[{'type': 'summary_text', 'text': 'T'}]}, {'role': 'assistant', 'content': 'x'}, "
             "{'type': 'function_call', 'name': 'f', 'arguments': '{}', 'call_id': 'c'}, {'type': "
             "'function_call_output', 'call_id': 'c', 'output': 'z'}, {'role': 'user', 'content': "
             "'y'}]"),
        SAYS(P,
             "[{'type': 'response.created', 'sequence_number': 0, 'response': {'status': "
             "'in_progress', 'output': [], 'usage': null}}, {'type': 'response.in_progress', "
             "'sequence_number': 1}, {'type': 'response.output_item.added', 'sequence_number': 2, "
             "'output_index': 0, 'item': {'type': 'message', 'status': 'in_progress', 'content': "
             "[]}}, {'type': 'response.content_part.added', 'content_index': 0, 'part': {'type': "
             "'output_text', 'text': ''}}, {'type': 'response.output_text.delta', 'delta': 'A', "
             "'output_index': 0, 'item_id': '~msg_'}, {'type': 'response.output_text.done', "
             "'text': 'A'}, {'type': 'response.content_part.done', 'part': {'text': 'A'}}, "
             "{'type': 'response.output_item.done', 'item': {'status': 'incomplete', 'content': "
             "[{'text': 'A'}]}}, {'type': 'response.incomplete', 'sequence_number': 8, "
             "'response': {'status': 'incomplete', 'usage': {'output_tokens': 1}}}]",
             IN ", 'max_output_tokens': 1, 'stream': true, " A),
        REFUSES(P, "{'error': {'param': 'input'}}", "'max_output_tokens': 1"),
        REFUSES(P, "{'error': {'param': 'input'}}", "'input': []"),
        REFUSES(P, "{'error': {'code': 'previous_response_not_found'}}",
                IN ", 'previous_response_id': 'resp_none'"),
        REFUSES(P, "{'error': {'param': 'truncation'}}", IN ", 'truncation': 'on'"),
        REFUSES(P, "{'error': {'param': 'text.verbosity'}}", IN ", 'text': {'verbosity': 'x'}"),
        REFUSES(P, "{'error': {'param': 'reasoning.summary'}}",
                IN ", 'reasoning': {'summary': 'x'}"),
        REFUSES(P, "{'error': {'param': 'include', 'message': '~x is not supported'}}",
                IN ", 'include': ['x']"),
        REFUSES(P, "{'error': {'param': 'store'}}", IN ", 'store': 1"),
        REFUSES(P, "{'error': {'param': 'metadata'}}", IN ", 'metadata': []"),
        REFUSES(P, "{'error': {'param': 'stream_options'}}", IN ", 'stream_options': {}"),
        REFUSES(P, "{'error': {'code': 'invalid_encrypted_content'}}",
                "'input': [{'type': 'reasoning', 'encrypted_content': 'abc'}]"),
        {P, "{'input': [{'type': 'item_reference', 'id': 'rs_none'}]}", 404,
         "{'error': {'code': 'not_found'}}"},
    };
    (void)state;
    CHECK(rows);
#undef P
}

static void messages(void **state) {
#define P     "/v1/messages"
#define COUNT "/v1/messages/count_tokens"
#define OFF   ", 'thinking': {'type': 'disabled'}"
#define ONCE  ", 'max_tokens': 1"
#define TOOL                                                                                       \
    "'tools': [{'name': 'f', 'input_schema': {'type': 'object', 'properties': {'x': {'const': "    \
    "1}}, 'required': ['x'], 'additionalProperties': false}}]"
    static const row rows[] = {
        SAYS(P,
             "{'id': '~msg_', 'type': 'message', 'role': 'assistant', 'model': 'letters', "
             "'content': [{'type': 'text', 'text': '*'}], 'stop_reason': 'max_tokens', "
             "'stop_sequence': null, 'usage': {'input_tokens': 9, 'cache_read_input_tokens': 0, "
             "'output_tokens': 1, 'output_tokens_details': {'thinking_tokens': 0}}, "
             "'context_management': '-'}",
             HI ONCE OFF),
        SAYS(P, "{'content': [{'type': 'text', 'text': '~AB'}], 'stop_reason': 'end_turn'}",
             HI ", 'max_tokens': 99, 'output_config': {'format': {'type': 'json_schema', "
                "'schema': {'const': 'AB'}}}" OFF),
        SAYS(P, "{'stop_reason': 'stop_sequence', 'stop_sequence': 'B'}",
             HI ", 'max_tokens': 99, 'stop_sequences': ['C', 'B'], 'output_config': {'format': "
                "{'type': 'json_schema', 'schema': {'const': 'AB'}}}" OFF),
        SAYS(P,
             "{'content': [{'type': 'tool_use', 'id': '~call_', 'name': 'f', 'input': {'x': 1}}], "
             "'stop_reason': 'tool_use', 'usage': {'input_tokens': 11}}",
             HI ", 'max_tokens': 99, " TOOL ", 'tool_choice': {'type': 'tool', 'name': 'f'}" OFF),
        SAYS(P, "{'content': [{'type': 'tool_use'}]}",
             HI ", 'max_tokens': 99, " TOOL
                ", 'tool_choice': {'type': 'any', 'disable_parallel_tool_use': true}" OFF),
        SAYS(P, "{'content': [{'type': 'text'}], 'usage': {'input_tokens': 9}}",
             HI ONCE ", " TOOL ", 'tool_choice': {'type': 'none'}" OFF),
        SAYS(P, "{'context_management': {'applied_edits': []}}",
             HI ONCE ", 'context_management': {'edits': []}" OFF),
        SAYS(P,
             "[{'type': 'message_start', 'message': {'content': [], 'stop_reason': null, 'usage': "
             "{'input_tokens': 9, 'output_tokens': 0}}}, {'type': 'content_block_start', 'index': "
             "0, 'content_block': {'type': 'text', 'text': ''}}, {'type': 'content_block_delta', "
             "'index': 0, 'delta': {'type': 'text_delta', 'text': '*'}}, {'type': "
             "'content_block_stop', 'index': 0}, {'type': 'message_delta', 'delta': "
             "{'stop_reason': 'max_tokens', 'stop_sequence': null}, 'usage': {'output_tokens': "
             "1}}, {'type': 'message_stop'}]",
             HI ONCE ", 'stream': true" OFF),
        SAYS(COUNT, "{'input_tokens': 9, 'context_management': '-'}", HI),
        SAYS(COUNT, "{'input_tokens': 18}", HI ", 'system': 'S'"),
        SAYS(COUNT, "{'input_tokens': 18}", HI ", 'system': [{'type': 'text', 'text': 'S'}]"),
        SAYS(COUNT, "{'input_tokens': 11}", HI ", " TOOL),
        /* [user]Hi[assistant]!f[tool]ok> */
        SAYS(COUNT, "{'input_tokens': 30}",
             "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "
             "[{'type': 'tool_use', 'id': 'c', 'name': 'f', 'input': {}}]}, {'role': 'user', "
             "'content': [{'type': 'tool_result', 'tool_use_id': 'c', 'content': 'ok'}]}]"),
        /* [user]Hi[assistant](T)x[user]y>; of two turns with thinking, one keeps it: 3 less. */
        SAYS(COUNT, "{'input_tokens': 31}",
             "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "
             "[{'type': 'thinking', 'thinking': 'T', 'signature': ''}, {'type': 'text', 'text': "
             "'x'}]}, {'role': 'user', 'content': 'y'}]"),
        SAYS(COUNT, "{'input_tokens': 50, 'context_management': {'original_input_tokens': 53}}",
             "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "
             "[{'type': 'thinking', 'thinking': 'T', 'signature': ''}, {'type': 'text', 'text': "
             "'x'}]}, {'role': 'user', 'content': 'y'}, {'role': 'assistant', 'content': "
             "[{'type': 'thinking', 'thinking': 'T', 'signature': ''}, {'type': 'text', 'text': "
             "'x'}]}, {'role': 'user', 'content': 'y'}], 'context_management': {'edits': "
             "[{'type': 'clear_thinking_20251015'}]}"),
        REFUSES(P, "{'error': {'message': '~output_config.effort'}}",
                HI ONCE ", 'output_config': {'effort': 3}"),
        REFUSES(P, "{'error': {'message': '~not supported here'}}",
                HI ONCE ", 'output_config': {'shape': {}}"),
        REFUSES(P, "{'error': {'message': '~may be summarized or omitted'}}",
                HI ONCE ", 'thinking': {'type': 'adaptive', 'display': true}"),
        REFUSES(P, "{'error': {'message': '~must be {type: enabled'}}",
                HI ONCE ", 'thinking': {'type': 'enabled'}"),
        REFUSES(P, "{'error': {'message': '~is {'}}",
                HI ONCE ", 'cache_control': {'type': 'ephemeral', 'ttl': '2h'}"),
        SAYS(P, "{'type': 'message'}",
             HI ONCE OFF ", 'cache_control': {'type': 'ephemeral', 'ttl': null}"),
        REFUSES(P, "{'error': {'message': '~disable_parallel_tool_use'}}",
                HI ONCE ", " TOOL
                        ", 'tool_choice': {'type': 'auto', 'disable_parallel_tool_use': 1}"),
        REFUSES(P, "{'error': {'message': '~must be of type auto, any'}}",
                HI ONCE ", " TOOL ", 'tool_choice': {'type': 'tool'}"),
        REFUSES(P, "{'error': {'message': '~keep must be'}}",
                HI ONCE ", 'context_management': {'edits': [{'type': 'clear_thinking_20251015', "
                        "'keep': {'type': 'thinking_turns', 'value': 0}}]}"),
        REFUSES(P,
                "{'type': 'error', 'error': {'type': 'invalid_request_error', 'message': "
                "'~is missing'}}",
                HI),
    };
    (void)state;
    CHECK(rows);
#undef P
}

/* Ollama's. */
static void ollama(void **state) {
#define C     "/api/chat"
#define G     "/api/generate"
#define M     "'model': 'letters', "
#define WHOLE "'stream': false, "
    static const row rows[] = {
        SAYS(C,
             "{'model': 'letters', 'created_at': '*', 'message': {'role': 'assistant', 'content': "
             "'AA', 'thinking': '-', 'tool_calls': '-'}, 'done': true, 'done_reason': 'length', "
             "'prompt_eval_count': 9, 'eval_count': 2, 'context': '-', 'logprobs': '-'}",
             M WHOLE HI ", 'options': {'num_predict': 2, " A "}"),
        SAYS(C,
             "[{'message': {'content': 'A'}, 'done': false, 'done_reason': '-'}, {'message': "
             "{'content': ''}, 'done': true, 'done_reason': 'length', 'eval_count': 1}]",
             M HI ", 'options': {'num_predict': 1, " A "}"),
        SAYS(C, "{'message': {'content': '~AB'}, 'done_reason': 'stop'}",
             M WHOLE HI ", 'think': false, 'format': {'const': 'AB'}, 'options': {" A "}"),
        /* #f[user]Hi[assistant]!f[tool]ok[user]> */
        SAYS(C, "{'prompt_eval_count': 38}",
             M WHOLE TOOLS ", 'options': {'num_predict': 1}, 'messages': [{'role': 'user', "
                           "'content': 'Hi'}, {'role': 'assistant', 'tool_calls': [{'function': "
                           "{'name': 'f', 'arguments': {}}}]}, {'role': 'tool', 'content': 'ok'}, "
                           "{'role': 'user', 'content': ''}]"),
        SAYS(G,
             "{'response': 'AA', 'message': '-', 'done': true, 'prompt_eval_count': 9, 'context': "
             "[59, 85, 83, 69, 82, 61, 40, 73, 30, 33, 33]}",
             M WHOLE "'prompt': 'Hi', 'options': {'num_predict': 2, " A "}"),
        SAYS(G, "{'response': 'A', 'prompt_eval_count': 2, 'context': '-'}",
             M WHOLE "'prompt': 'ab', 'raw': true, 'options': {'num_predict': 1, " A "}"),
        SAYS(G, "{'prompt_eval_count': 18}",
             M WHOLE "'prompt': 'Hi', 'system': 'S', 'options': {'num_predict': 1}"),
        SAYS(G, "{'prompt_eval_count': 11}",
             M WHOLE "'prompt': 'Hi', 'context': [33, 33], 'options': {'num_predict': 1}"),
        SAYS(G, "{'logprobs': [{'token': 'A', 'bytes': [65], 'top_logprobs': ['*', '*']}]}",
             M WHOLE "'prompt': 'Hi', 'logprobs': true, 'top_logprobs': 2, 'options': "
                     "{'num_predict': 1, " A "}"),
        SAYS(G, "{'response': '', 'done': true, 'done_reason': 'load', 'eval_count': '-'}",
             M "'prompt': ''"),
        SAYS(C, "{'message': {'content': ''}, 'done': true, 'done_reason': 'load'}",
             M "'messages': []"),
        SAYS(G, "{'model': 'letters:latest', 'eval_count': 1}",
             "'model': 'letters:latest', " WHOLE "'prompt': 'Hi', 'options': {'num_predict': 1}"),
        {G, "{'model': 'other', 'prompt': 'a'}", 404, "{'error': '~not found'}"},
        REFUSES(G, "{'error': 'model is required'}", "'prompt': 'a'"),
        REFUSES(G, "{'error': '~num_predict'}", M "'prompt': 'a', 'options': {'num_predict': 0}"),
        REFUSES(G, "{'error': '~context that is served has 512'}",
                M "'prompt': 'a', 'options': {'num_ctx': 513}"),
        REFUSES(G, "{'error': '~exclude'}", M "'prompt': 'a', 'raw': true, 'system': 'S'"),
        REFUSES(G, "{'error': '~format'}", M "'prompt': 'a', 'format': 'xml'"),
        REFUSES(C, "{'error': '~images'}",
                M "'messages': [{'role': 'user', 'content': 'a', 'images': ['b']}]"),
    };
    (void)state;
    CHECK(rows);
}

/* Durations of Go's time.ParseDuration, and numbers of seconds. */
static void keep_alive(void **state) {
    static const struct {
        const char *value;
        double seconds; /* NAN: refused. */
    } cases[] = {{"'5m'", 300},     {"'1h30m'", 5400},  {"'1.5h'", 5400},  {"'100ms'", 0.1},
                 {"'-1m30s'", -90}, {"'250us'", 25e-5}, {"'1h1ns'", 3600}, {"300", 300},
                 {"-1", -1},        {"0", 0},           {"'300'", 300},    {"'5x'", NAN},
                 {"'5m3'", NAN},    {"''", NAN},        {"'m'", NAN},      {"null", NAN},
                 {"'1e16s'", NAN},  {"'5mm'", NAN}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *const value = served_parse(cases[i].value);
        lt_api_error e = {0};
        double seconds = 0;
        const bool good = lt_ollama_keep_alive(value, &seconds, &e);
        if (good == isnan(cases[i].seconds) ||
            (good && fabs(seconds - cases[i].seconds) > 1e-9 * fabs(seconds) + 2e-9)) {
            fail_msg("keep_alive %s: %d, %.12g", cases[i].value, good, seconds);
        }
        assert_int_equal(e.status, good ? 0 : 400);
        json_decref(value);
    }
}

/* llama-server's. */
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
             "'predicted_n': 2}}",
             "'prompt': 'ab', 'n_predict': 2, 'seed': 7, 'stop': ['C'], " A),
        SAYS(P, "{'content': 'AA', 'stop_type': 'word', 'stopping_word': 'B', 'truncated': false}",
             "'prompt': 'ab', 'stop': ['B'], 'guided_regex': 'AABA'"),
        SAYS(P, "{'content': 'AB', 'stop_type': 'eos'}", "'prompt': 'ab', 'guided_regex': 'AB'"),
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
        /* Ids and texts mixed are one prompt, a list of texts several. */
        SAYS(P, "{'prompt': 'aBc', 'tokens_evaluated': 3}",
             "'prompt': ['a', 34, 'c'], 'n_predict': 1"),
        SAYS(P, "[{'index': 0, 'prompt': 'a'}, {'index': 1, 'prompt': 'bc'}]",
             "'prompt': ['a', 'bc'], 'n_predict': 1"),
        SAYS(P,
             "[{'content': 'A', 'tokens': [33], 'stop': false, 'tokens_predicted': 1, "
             "'tokens_evaluated': 2}, {'content': '', 'tokens': [], 'stop': true, "
             "'tokens_predicted': 1, 'stop_type': 'limit'}]",
             "'prompt': 'ab', 'n_predict': 1, 'stream': true, " A),
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
    served_check(&s, "GET", "/tokenizer_info", "", 200,
                 "{'vocab_size': 96, 'model_max_length': 512, 'add_bos_token': false, 'bos_token': "
                 "null, 'additional_special_tokens': []}");
#undef P
}

/* A member of the answer to a request, which must succeed; free it. */
static char *member(const char *ask, const char *body, const char *name) {
    static char answer[SERVED_REPLY_BYTES];
    json_t *const asked = served_parse(body);
    char *const text = json_dumps(asked, JSON_COMPACT);
    const int status = served_ask(&s, "POST", ask, text, answer);
    json_t *const got = json_loads(answer, 0, NULL);
    const char *const value = json_string_value(json_object_get(got, name));
    if (status != 200 || value == NULL) {
        fail_msg("%s %s: %d %s", ask, text, status, answer);
    }
    char *const copy = strdup(value);
    json_decref(got);
    json_decref(asked);
    free(text);
    return copy;
}

/* What is kept, and what a later turn reads of it: [user]Hi[assistant]AB[user]y> has 29
 * characters. */
static void turns(void **state) {
    char body[512], where[128];
    (void)state;
    char *id = member("/v1/responses",
                      "{'input': 'Hi', 'instructions': 'S', 'guided_regex': 'AB', " A "}", "id");
    snprintf(body, sizeof body,
             "{'input': 'y', 'previous_response_id': '%s', 'max_output_tokens': 1}", id);
    served_check(&s, "POST", "/v1/responses", body, 200,
                 "{'usage': {'input_tokens': 29}, 'instructions': null}");
    snprintf(where, sizeof where, "/v1/responses/%s", id);
    served_check(&s, "GET", where, "", 200,
                 "{'status': 'completed', 'output': [{'content': [{'text': 'AB'}]}]}");
    snprintf(where, sizeof where, "/v1/responses/%s/input_items", id);
    served_check(&s, "GET", where, "", 200,
                 "{'data': [{'type': 'message', 'role': 'user', 'content': [{'text': 'Hi'}]}]}");
    free(id);

    id = member("/v1/responses", "{'input': 'Hi', 'store': false, 'guided_regex': 'AB', " A "}",
                "id");
    snprintf(body, sizeof body, "{'input': 'y', 'previous_response_id': '%s'}", id);
    served_check(&s, "POST", "/v1/responses", body, 400,
                 "{'error': {'code': 'previous_response_not_found'}}");
    free(id);

    /* A thread keeps its system and its tools: #f[system]S[user]Hi and so on; the answer is one
     * character. */
    id = member("/v1/messages",
                "{" HI ONCE OFF ", 'system': 'S', " TOOL ", 'tool_choice': {'type': 'none'}, "
                "'thread': {'type': 'create'}}",
                "id");
    snprintf(body, sizeof body,
             "{'messages': [{'role': 'user', 'content': 'y'}], 'max_tokens': 1, 'thread': {'type': "
             "'continue', 'previous_message_id': '%s'}}",
             id);
    served_check(&s, "POST", "/v1/messages/count_tokens", body, 200, "{'input_tokens': 39}");
    snprintf(body, sizeof body,
             "{'system': 'T', 'messages': [{'role': 'user', 'content': 'y'}], 'max_tokens': 1, "
             "'thread': {'type': 'continue', 'previous_message_id': '%s'}}",
             id);
    served_check(&s, "POST", "/v1/messages", body, 400, "{'error': {'message': '~created with'}}");
    free(id);
    served_check(&s, "POST", "/v1/messages",
                 "{" HI ONCE ", 'thread': {'type': 'continue', 'previous_message_id': 'msg_0'}}",
                 404, "{'error': {'type': 'not_found_error'}}");
    served_check(&s, "POST", "/v1/messages", "{" HI ONCE ", 'thread': {'type': 'x'}}", 400,
                 "{'error': {'message': '~must be {type: create}'}}");

    id = member("/v1/chat/completions",
                "{" HI ", 'store': true, 'metadata': {'a': 'b'}, 'guided_regex': 'AB', " A "}",
                "id");
    snprintf(where, sizeof where, "/v1/chat/completions/%s", id);
    served_check(&s, "GET", where, "", 200,
                 "{'object': 'chat.completion', 'metadata': {'a': 'b'}, 'choices': [{'message': "
                 "{'content': 'AB'}}]}");
    free(id);
    id = member("/v1/chat/completions", "{" HI ", 'guided_regex': 'AB', " A "}", "id");
    snprintf(where, sizeof where, "/v1/chat/completions/%s", id);
    served_check(&s, "GET", where, "", 404, "{'error': '*'}");
    free(id);
}

/* Streams of thinking and of calls: in order, each piece once. */
static void streams(void **state) {
#define THINK1 "'chat_template_kwargs': {'think': true}, 'thinking_budget': 1, "
#define STREAM ", 'stream': true, "
    static const row rows[] = {
        SAYS("/v1/chat/completions",
             "[{'choices': [{'delta': {'role': 'assistant'}}]}, {'choices': [{'delta': "
             "{'reasoning_content': 'A', 'reasoning': 'A', 'content': '-'}}]}, {'choices': "
             "[{'delta': {'content': 'B', 'reasoning': '-'}}]}, {'choices': [{'delta': {}, "
             "'finish_reason': 'stop'}]}, '[DONE]']",
             HI STREAM "'guided_regex': 'B', " THINK1 A),
        SAYS("/v1/chat/completions",
             "[{'choices': [{'delta': {'role': 'assistant'}}]}, {'choices': [{'delta': "
             "{'content': 'B'}}]}, {'choices': [{'finish_reason': 'stop'}]}, '[DONE]']",
             HI STREAM "'include_reasoning': false, 'guided_regex': 'B', " THINK1 A),
        SAYS("/v1/messages",
             "[{'type': 'message_start', 'message': {'usage': {'input_tokens': 16}}}, {'type': "
             "'content_block_start', 'index': 0, 'content_block': {'type': 'thinking', 'thinking': "
             "'', 'signature': ''}}, {'type': 'content_block_delta', 'index': 0, 'delta': {'type': "
             "'thinking_delta'}}, {'type': 'content_block_delta', 'index': 0, 'delta': {'type': "
             "'signature_delta', 'signature': '*'}}, {'type': 'content_block_stop', 'index': 0}, "
             "{'type': 'content_block_start', 'index': 1, 'content_block': {'type': 'text'}}, "
             "{'type': 'content_block_delta', 'index': 1}, {'type': 'content_block_stop', 'index': "
             "1}, {'type': 'message_delta', 'delta': {'stop_reason': 'max_tokens'}}, {'type': "
             "'message_stop'}]",
             HI STREAM "'chat_template_kwargs': {'think': true}, 'thinking': {'type': 'enabled', "
                       "'budget_tokens': 1}, 'max_tokens': 10"),
        SAYS("/api/chat",
             "[{'message': {'content': 'A'}, 'done': false}, {'message': {'content': 'A'}, 'done': "
             "false}, {'message': {'content': ''}, 'done': true, 'eval_count': 2}]",
             "'model': 'letters', " HI STREAM "'options': {'num_predict': 2, " A "}"),
    };
    (void)state;
    CHECK(rows);
}

int main(void) {
    alarm(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completions), cmocka_unit_test(chat),    cmocka_unit_test(responses),
        cmocka_unit_test(messages),    cmocka_unit_test(ollama),  cmocka_unit_test(native),
        cmocka_unit_test(turns),       cmocka_unit_test(streams), cmocka_unit_test(keep_alive),
    };
    return cmocka_run_group_tests(tests, start, end);
}
