/* What the formats of the API make of an answer that is known beforehand (formats.h): responses,
 * Anthropic's messages and Ollama's; what is kept for later turns; streams. Expected values are
 * written by hand from the published descriptions of the APIs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/api/formats/ollama.h"
#include "unit/serve/formats.h"

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
        SAYS(P "/input_tokens", "{'input_tokens': 29}",
             "'input': [{'role': 'user', 'content': 'Hi'}, {'type': 'function_call', 'name': 'f', "
             "'arguments': '{}', 'call_id': 'c'}, {'type': 'function_call_output', 'call_id': "
             "'c', 'output': 'z'}]"),
        SAYS(P,
             "['*', '*', {'type': 'response.output_item.added', 'output_index': 0, 'item': "
             "{'type': 'reasoning', 'content': []}}, {'type': 'response.content_part.added', "
             "'part': {'type': 'reasoning_text', 'text': ''}}, {'type': "
             "'response.reasoning_text.delta', 'delta': 'A'}, {'type': "
             "'response.reasoning_text.done', 'text': 'A', 'output_index': 0}, {'type': "
             "'response.content_part.done'}, {'type': 'response.output_item.done', 'item': "
             "{'type': 'reasoning', 'status': 'completed'}}, {'type': "
             "'response.output_item.added', 'output_index': 1, 'item': {'type': 'message'}}, "
             "{'type': 'response.content_part.added'}, {'type': 'response.output_text.delta', "
             "'delta': 'B', 'output_index': 1}, {'type': 'response.output_text.done', 'text': "
             "'B'}, {'type': 'response.content_part.done'}, {'type': "
             "'response.output_item.done', 'output_index': 1}, {'type': 'response.completed', "
             "'response': {'output': ['*', '*']}}]",
             IN ", 'stream': true, 'guided_regex': 'B', 'chat_template_kwargs': {'think': true}, "
                "'thinking_budget': 1, " A),
        SAYS(P,
             "['*', '*', {'type': 'response.output_item.added', 'item': {'type': "
             "'function_call', 'name': 'f', 'arguments': '', 'status': 'in_progress'}}, {'type': "
             "'response.function_call_arguments.delta'}, '...', {'type': "
             "'response.function_call_arguments.done', 'name': 'f', 'arguments': '~\\'x\\''}, "
             "{'type': 'response.output_item.done', 'item': {'arguments': '~\\'x\\''}}, {'type': "
             "'response.completed'}]",
             IN ", 'stream': true, " FLAT ", 'tool_choice': {'type': 'function', 'name': 'f'}, "
                "" CALL),
        SAYS(P "/input_tokens", "{'input_tokens': 16}", /* [user]Hi[user]y> */
             "'input': [{'role': 'user', 'content': 'Hi'}, {'type': 'reasoning', 'summary': "
             "[{'type': 'summary_text', 'text': 'T'}]}, {'role': 'user', 'content': 'y'}]"),
        SAYS(P "/input_tokens", "{'input_tokens': 9}",
             "'input': [{'role': 'user', 'content': 'Hi'}, {'type': 'reasoning', 'summary': "
             "[{'type': 'summary_text', 'text': 'T'}]}]"),
        REFUSES(P, "{'error': {'param': 'thinking_budget'}}", IN ", 'thinking_budget': -2"),
        REFUSES(P, "{'error': {'param': 'input[0]'}}",
                "'input': [{'type': 'function_call', 'arguments': '{}'}]"),
        REFUSES(P, "{'error': {'param': 'input[0]'}}",
                "'input': [{'type': 'function_call', 'name': 'f'}]"),
        REFUSES(P, "{'error': {'param': 'input[1]'}}",
                "'input': [{'role': 'user', 'content': 'a'}, {'type': 'web_search_call'}]"),
        REFUSES(P, "{'error': {'param': 'tools'}}", IN ", 'tools': [{'type': 'web_search'}]"),
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
                "'input': [{'type': 'reasoning', 'encrypted_content': 'abc'}, {'role': 'user', "
                "'content': 'a'}]"),
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
#define ONCE  ", 'max_tokens': 1, 'temperature': 0"
#define TWO                                                                                        \
    "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "            \
    "[{'type': 'thinking', 'thinking': 'T', 'signature': ''}, {'type': 'text', 'text': "           \
    "'x'}]}, {'role': 'user', 'content': 'y'}, {'role': 'assistant', 'content': "                  \
    "[{'type': 'thinking', 'thinking': 'T', 'signature': ''}, {'type': 'text', 'text': "           \
    "'x'}]}, {'role': 'user', 'content': 'y'}], 'context_management': {'edits': "                  \
    "[{'type': 'clear_thinking_20251015', "
#define FAILED(result)                                                                             \
    "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "            \
    "[{'type': 'tool_use', 'id': 'c', 'name': 'f', 'input': {}}]}, {'role': 'user', 'content': "   \
    "[{'type': 'tool_result', 'tool_use_id': 'c', 'content': " result "}]}]"
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
             HI ", 'max_tokens': 99, 'temperature': 0, 'output_config': {'format': {'type': "
                "'json_schema', "
                "'schema': {'const': 'AB'}}}" OFF),
        SAYS(P, "{'stop_reason': 'stop_sequence', 'stop_sequence': 'B'}",
             HI ", 'max_tokens': 99, 'temperature': 0, 'stop_sequences': ['C', 'B'], "
                "'output_config': {'format': "
                "{'type': 'json_schema', 'schema': {'const': 'AB'}}}" OFF),
        SAYS(P,
             "{'content': [{'type': 'tool_use', 'id': '~call_', 'name': 'f', 'input': {'x': 1}}], "
             "'stop_reason': 'tool_use', 'usage': {'input_tokens': 11}}",
             HI ", 'max_tokens': 99, 'temperature': 0, " TOOL
                ", 'tool_choice': {'type': 'tool', 'name': 'f'}" OFF),
        SAYS(P, "{'content': [{'type': 'tool_use'}]}",
             HI ", 'max_tokens': 99, 'temperature': 0, " TOOL
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
        SAYS(P, "{'stop_reason': 'stop_sequence', 'stop_sequence': 'B'}",
             HI ", 'max_tokens': 99, 'temperature': 0, 'stop_sequences': ['B'], 'output_config': "
                "{'format': "
                "{'type': 'json_schema', 'schema': {'const': 'AB'}}}" OFF),
        SAYS(P, "{'content': [{'type': 'text', 'text': '~AB'}]}",
             HI ", 'max_tokens': 99, 'temperature': 0, 'chat_template_kwargs': {'think': true}, "
                "'output_config': "
                "{'effort': 'none', 'format': {'type': 'json_schema', 'schema': {'const': "
                "'AB'}}}"),
        SAYS(P, "{'content': [{'type': 'thinking', 'thinking': '~'}, {'type': 'text'}]}",
             HI ", 'max_tokens': 12, 'temperature': 0, 'chat_template_kwargs': {'think': true}, "
                "'thinking': "
                "{'type': 'enabled', 'budget_tokens': 2, 'display': 'summarized'}"),
        SAYS(P, "{'content': [{'type': 'thinking', 'thinking': '', 'signature': '*'}, '*']}",
             HI ", 'max_tokens': 12, 'temperature': 0, 'chat_template_kwargs': {'think': true}, "
                "'thinking': "
                "{'type': 'enabled', 'budget_tokens': 2, 'display': 'omitted'}"),
        REFUSES(P, "{'error': {'message': '~list of edits'}}",
                HI ONCE ", 'context_management': {'edits': 3}"),
        REFUSES(P, "{'error': {'message': '~list of edits'}}", HI ONCE ", 'context_management': 3"),
        REFUSES(P, "{'error': {'message': '~must be user or assistant'}}",
                "'messages': [{'role': 'x', 'content': 'Hi'}]" ONCE),
        REFUSES(P, "{'error': {'message': '~must be user or assistant'}}",
                "'messages': [{'role': 'x', 'content': 'Hi'}]" ONCE ", " TOOL),
        REFUSES(P, "{'error': {'message': '~list of blocks'}}",
                "'messages': [{'role': 'user', 'content': 3}]" ONCE),
        REFUSES(P, "{'error': {'message': '~has no content'}}",
                "'messages': [{'role': 'user', 'content': []}]" ONCE),
        REFUSES(P, "{'error': {'message': '~at least one message'}}", "'messages': []" ONCE),
        REFUSES(P, "{'error': {'message': '~needs a name and an input'}}",
                "'messages': [{'role': 'assistant', 'content': [{'type': 'tool_use', 'input': "
                "{}}]}]" ONCE),
        REFUSES(P, "{'error': {'message': '~type image is not supported'}}",
                "'messages': [{'role': 'user', 'content': [{'type': 'image'}]}]" ONCE),
        REFUSES(P, "{'error': {'message': '~has no text'}}",
                "'messages': [{'role': 'user', 'content': [{'type': 'text'}]}]" ONCE),
        /* An answer that was begun: [user]Hi[assistant]x */
        SAYS(COUNT, "{'input_tokens': 20}",
             "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "
             "'x'}]" OFF),
        /* Nothing precedes the stop sequence. */
        SAYS(
            P,
            "[{'type': 'message_start'}, {'type': 'message_delta', 'delta': {'stop_reason': "
            "'stop_sequence', 'stop_sequence': '\\''}}, {'type': 'message_stop'}]",
            HI
            ", 'max_tokens': 99, 'stream': true, 'stop_sequences': ['\\''], 'output_config': "
            "{'format': {'type': 'json_schema', 'schema': {'type': 'string', 'const': 'AB'}}}" OFF),
        SAYS(COUNT, "{'input_tokens': 8}",
             "'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'y'}]}]"),
        SAYS(COUNT, "{'input_tokens': 9, 'context_management': '-'}", HI),
        /* The signature of another server: that thinking is left out. */
        SAYS(COUNT, "{'input_tokens': 28}",
             "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "
             "[{'type': 'thinking', 'thinking': 'T', 'signature': 'abc'}, {'type': "
             "'redacted_thinking', 'data': 'x'}, {'type': 'text', 'text': 'x'}]}, {'role': "
             "'user', 'content': 'y'}]"),
        SAYS(COUNT, "{'input_tokens': 31, 'context_management': {'original_input_tokens': 31}}",
             "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "
             "[{'type': 'thinking', 'thinking': 'T', 'signature': ''}, {'type': 'text', 'text': "
             "'x'}]}, {'role': 'user', 'content': 'y'}], 'context_management': {'edits': "
             "[{'type': 'clear_thinking_20251015', 'keep': 'all'}]}"),
        SAYS(COUNT, "{'input_tokens': 18}", HI ", 'system': 'S'"),
        SAYS(COUNT, "{'input_tokens': 18}", HI ", 'system': [{'type': 'text', 'text': 'S'}]"),
        SAYS(COUNT, "{'input_tokens': 11}", HI ", " TOOL),
        SAYS(COUNT, "{'input_tokens': 9}", HI ", " TOOL ", 'tool_choice': {'type': 'none'}"),
        REFUSES(COUNT, "{'error': {'message': '~there is no tool g'}}",
                HI ", " TOOL ", 'tool_choice': {'type': 'tool', 'name': 'g'}"),
        /* [user]Hi[assistant]!f[tool]ok> */
        SAYS(COUNT, "{'input_tokens': 30}",
             "'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': "
             "[{'type': 'tool_use', 'id': 'c', 'name': 'f', 'input': {}}]}, {'role': 'user', "
             "'content': [{'type': 'tool_result', 'tool_use_id': 'c', 'content': 'ok'}]}]"),
        /* The same with "Error: " before the result; a text that already begins like this is left
         * unchanged. */
        SAYS(COUNT, "{'input_tokens': 37}", FAILED("'ok', 'is_error': true")),
        SAYS(COUNT, "{'input_tokens': 30}", FAILED("'ok', 'is_error': false")),
        SAYS(COUNT, "{'input_tokens': 36}", FAILED("'error: x', 'is_error': true")),
        REFUSES(COUNT, "{'error': {'message': '~is_error must be true or false'}}",
                FAILED("'ok', 'is_error': 'yes'")),
        /* [user]Hi[assistant](T)x[user]y>; of two turns with thinking, only one keeps it: 3
         * less. */
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
        SAYS(COUNT, "{'input_tokens': 53, 'context_management': {'original_input_tokens': 53}}",
             TWO "'keep': 'all'}]}"),
        SAYS(COUNT, "{'input_tokens': 53, 'context_management': {'original_input_tokens': 53}}",
             TWO "'keep': {'type': 'all'}}]}"),
        SAYS(COUNT, "{'input_tokens': 50, 'context_management': {'original_input_tokens': 53}}",
             TWO "'keep': {'type': 'thinking_turns', 'value': 1}}]}"),
        SAYS(COUNT, "{'input_tokens': 53, 'context_management': {'original_input_tokens': 53}}",
             TWO "'keep': {'type': 'thinking_turns', 'value': 2}}]}"),
        REFUSES(COUNT, "{'error': {'message': '~keep must be'}}",
                TWO "'keep': {'type': 'x', 'value': 1}}]}"),
        SAYS(P, "{'type': 'message'}", HI ONCE OFF ", 'repetition_penalty': 100"),
        REFUSES(P, "{'error': {'message': '~between 0.001 and 100'}}",
                HI ONCE ", 'repetition_penalty': 100.5"),
        REFUSES(P, "{'error': {'message': '~output_config.effort'}}",
                HI ONCE ", 'output_config': {'effort': 3}"),
        REFUSES(P, "{'error': {'message': '~not supported here'}}",
                HI ONCE ", 'output_config': {'shape': {}}"),
        REFUSES(P, "{'error': {'message': '~no string; it may be summarized or omitted'}}",
                HI ONCE ", 'thinking': {'type': 'adaptive', 'display': true}"),
        REFUSES(P, "{'error': {'message': '~must be {type: enabled'}}",
                HI ONCE ", 'thinking': {'type': 'enabled'}"),
        REFUSES(P, "{'error': {'message': '~is {'}}",
                HI ONCE ", 'cache_control': {'type': 'ephemeral', 'ttl': '2h'}"),
        REFUSES(P, "{'error': {'message': '~is {'}}",
                "'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'a', "
                "'cache_control': {'type': 'ephemeral', 'ttl': '2h'}}]}]" ONCE),
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

/* The format of Ollama. */
static void ollama(void **state) {
#define C     "/api/chat"
#define G     "/api/generate"
#define M     "'model': 'letters', "
#define WHOLE "'stream': false, "
#define SPELT                                                                                      \
    "'guided_regex': '<tool_call>\\\\{\\'name\\': \\'f\\', \\'arguments\\': "                      \
    "\\\\{\\'x\\': 1\\\\}\\\\}</tool_call>', 'stop': '</tool_call>', 'logit_bias': {'28': 100}"
    static const row rows[] = {
        SAYS(C,
             "{'model': 'letters', 'created_at': '*', 'message': {'role': 'assistant', "
             "'content': "
             "'AA', 'thinking': '-', 'tool_calls': '-'}, 'done': true, 'done_reason': 'length', "
             "'prompt_eval_count': 9, 'eval_count': 2, 'context': '-', 'logprobs': '-', "
             "'total_duration': '>0', 'prompt_eval_duration': '>0', 'eval_duration': '>0'}",
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
        /* An output format that allows the spelling of a call, which is read as a call. */
        SAYS(C,
             "{'message': {'content': '', 'tool_calls': [{'id': '~call_', 'function': {'index': "
             "0, 'name': 'f', 'arguments': {'x': 1}}}]}, 'done_reason': 'stop'}",
             M WHOLE HI ", 'think': false, " TOOLS ", 'options': {" SPELT "}"),
        SAYS(C,
             "[{'message': {'content': '', 'tool_calls': [{'function': {'arguments': {'x': "
             "1}}}]}, 'done': false}, {'message': {'content': '', 'tool_calls': '-'}, 'done': "
             "true}]",
             M HI ", 'think': false, " TOOLS ", 'options': {" SPELT "}"),
        SAYS(G,
             "{'response': 'AA', 'message': '-', 'done': true, 'prompt_eval_count': 9, "
             "'context': "
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

/* Items by reference: stored ones, and ones of the same input. */
static void references(void **state) {
    static char answer[SERVED_REPLY_BYTES];
    char body[512], where[128];
    (void)state;
    char *const id = member("/v1/responses",
                            "{'input': [{'role': 'user', 'content': 'Hi'}], 'guided_regex': "
                            "'AB', " A "}",
                            "id");
    snprintf(where, sizeof where, "/v1/responses/%s/input_items", id);
    served_check(&s, "GET", where, "", 200,
                 "{'data': [{'id': '~msg_', 'type': 'message', 'role': 'user'}]}");
    snprintf(where, sizeof where, "/v1/responses/%s", id);
    assert_int_equal(served_ask(&s, "GET", where, "", answer), 200);
    json_t *const got = json_loads(answer, 0, NULL);
    const json_t *const item = json_array_get(json_object_get(got, "output"), 0);
    /* [assistant]AB[user]y> */
    snprintf(body, sizeof body,
             "{'input': [{'type': 'item_reference', 'id': '%s'}, {'role': 'user', 'content': "
             "'y'}]}",
             json_string_value(json_object_get(item, "id")));
    served_check(&s, "POST", "/v1/responses/input_tokens", body, 200, "{'input_tokens': 21}");
    /* An item of the input takes precedence over a stored one: [user]z[user]z> */
    snprintf(body, sizeof body,
             "{'input': [{'type': 'message', 'id': '%s', 'role': 'user', 'content': 'z'}, {'type': "
             "'item_reference', 'id': '%s'}]}",
             json_string_value(json_object_get(item, "id")),
             json_string_value(json_object_get(item, "id")));
    served_check(&s, "POST", "/v1/responses/input_tokens", body, 200, "{'input_tokens': 15}");
    json_decref(got);
    free(id);
}

/* What is stored, and what a later turn reads of it: [user]Hi[assistant]AB[user]y> has 29
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
    snprintf(body, sizeof body, "{'input': 'y', 'previous_response_id': '%s'}", id);
    served_check(&s, "POST", "/v1/responses/input_tokens", body, 200, "{'input_tokens': 29}");
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

    /* A thread keeps its system prompt and its tools: #f[system]S[user]Hi and so on; the answer
     * is one character. */
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
    served_check(&s, "POST", "/v1/messages", body, 400,
                 "{'error': {'message': '~with which it was created'}}");
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

/* Pages of three stored chats, oldest first unless it is asked for otherwise. */
static void stored_chats_in_pages(void **state) {
#define LIST "/v1/chat/completions?metadata%5Bof%5D=pages"
#define N(n) "{'metadata': {'n': '" n "'}}"
    char body[256], where[128], want[256], *ids[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        (void)snprintf(body, sizeof body,
                       "{" HI ", 'store': true, 'metadata': {'of': 'pages', 'n': '%d'}, "
                       "'max_tokens': 1, " A "}",
                       i);
        ids[i] = member("/v1/chat/completions", body, "id");
    }
    (void)snprintf(
        want, sizeof want,
        "{'object': 'list', 'data': [" N("0") ", " N("1") "], 'has_more': true, "
                                                          "'first_id': '%s', 'last_id': '%s'}",
        ids[0], ids[1]);
    served_check(&s, "GET", LIST "&limit=2", "", 200, want);
    served_check(&s, "GET", LIST "&limit=3", "", 200,
                 "{'data': [" N("0") ", " N("1") ", " N("2") "], 'has_more': false}");
    served_check(&s, "GET", LIST "&limit=2&order=desc", "", 200,
                 "{'data': [" N("2") ", " N("1") "], 'has_more': true}");
    (void)snprintf(where, sizeof where, "%s&after=%s", LIST, ids[1]);
    served_check(&s, "GET", where, "", 200, "{'data': [" N("2") "], 'has_more': false}");
    (void)snprintf(where, sizeof where, "%s&order=desc&after=%s", LIST, ids[1]);
    served_check(&s, "GET", where, "", 200, "{'data': [" N("0") "], 'has_more': false}");
    (void)snprintf(where, sizeof where, "%s&after=%s", LIST, ids[2]);
    served_check(&s, "GET", where, "", 200,
                 "{'data': [], 'has_more': false, 'first_id': null, 'last_id': null}");
    served_check(&s, "GET", LIST "&after=chatcmpl-none", "", 404,
                 "{'error': {'param': 'after', 'message': '~has no item with that id'}}");
    served_check(&s, "GET", LIST "&limit=0", "", 400, "{'error': {'param': 'limit'}}");
    for (int i = 0; i < 3; i++) {
        free(ids[i]);
    }
#undef N
#undef LIST
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
                       "'budget_tokens': 1}, 'max_tokens': 10, 'temperature': 0"),
        SAYS("/v1/messages",
             "['*', {'type': 'content_block_start', 'content_block': {'type': 'thinking'}}, "
             "{'type': 'content_block_delta', 'delta': {'type': 'signature_delta'}}, {'type': "
             "'content_block_stop'}, {'type': 'content_block_start', 'content_block': {'type': "
             "'text'}}, {'type': 'content_block_delta', 'delta': {'type': 'text_delta'}}, '...', "
             "{'type': 'message_stop'}]",
             HI STREAM "'chat_template_kwargs': {'think': true}, 'thinking': {'type': 'enabled', "
                       "'budget_tokens': 1, 'display': 'omitted'}, 'max_tokens': 10, "
                       "'temperature': 0"),
        SAYS("/api/chat",
             "[{'message': {'thinking': 'A', 'content': ''}, 'done': false}, {'message': "
             "{'thinking': 'A', 'content': ''}}, {'message': {'content': '', 'thinking': '-'}, "
             "'done': true, 'prompt_eval_count': 16}]",
             "'model': 'letters', " HI STREAM "'think': true, 'options': {'num_predict': 2, " A
             "}"),
        SAYS("/api/chat",
             "[{'message': {'content': 'A'}, 'done': false}, {'message': {'content': 'A'}, 'done': "
             "false}, {'message': {'content': ''}, 'done': true, 'eval_count': 2}]",
             "'model': 'letters', " HI STREAM "'options': {'num_predict': 2, " A "}"),
    };
    (void)state;
    CHECK(rows);
}

static void keep_nothing_and_shift(lt_server_options *o) {
    o->store.max_entries = 0;
    o->context_shift = true;
}

/* A server that stores nothing says so if it is asked to; one whose context shifts continues, and
 * reports that something was left out. */
static void options_of_the_server(void **state) {
    static const row rows[] = {
        REFUSES("/v1/chat/completions", "{'error': {'param': 'store'}}", HI ", 'store': true"),
        SAYS("/v1/chat/completions", "{'choices': ['*'], 'truncated': '-'}",
             HI ", 'store': false, 'max_tokens': 1"),
        REFUSES("/v1/responses", "{'error': {'param': 'store'}}", "'input': 'a', 'store': true"),
        SAYS("/v1/responses", "{'store': false}", "'input': 'a', 'max_output_tokens': 1"),
        REFUSES("/v1/messages", "{'error': {'message': '~stores nothing'}}",
                HI ", 'max_tokens': 1, 'thread': {'type': 'create'}"),
        SAYS("/v1/completions",
             "{'truncated': true, 'usage': {'prompt_tokens': 2, 'completion_tokens': 600}}",
             "'prompt': 'ab', 'max_tokens': 600, " A),
        SAYS("/v1/completions", "{'truncated': true, 'usage': {'completion_tokens': 1200}}",
             "'prompt': 'ab', 'max_tokens': 600, 'n': 2, " A),
        SAYS("/completion", "{'truncated': true, 'tokens_predicted': 600, 'stop_type': 'limit'}",
             "'prompt': 'ab', 'n_predict': 600, " A),
    };
    (void)state;
    served_end(&s); /* Signals can only have one event loop. */
    served_start_with(&s, path, false, keep_nothing_and_shift);
    CHECK(rows);
    served_end(&s);
    served_start(&s, path, false);
}

int main(void) {
    alarm(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(responses),
        cmocka_unit_test(messages),
        cmocka_unit_test(ollama),
        cmocka_unit_test(keep_alive),
        cmocka_unit_test(references),
        cmocka_unit_test(turns),
        cmocka_unit_test(stored_chats_in_pages),
        cmocka_unit_test(streams),
        cmocka_unit_test(options_of_the_server),
    };
    return cmocka_run_group_tests(tests, start, end);
}
