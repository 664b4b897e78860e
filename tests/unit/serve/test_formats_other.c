/* The calls of the API that write no text: embeddings, scores, filling in the middle, pages in
 * files, and what the server says about itself and its model; conversations for templates without
 * tools, and those that are too long. Each character is a token and the model's sizes are known
 * (served.h), so that all numbers are counted by hand; the shapes are those of OpenAI's,
 * llama-server's, vLLM's and Ollama's published descriptions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "unit/scratch_folder.h"
#include "unit/serve/served.h"

/* Ids from 96 on: the marks of a text with a gap. */
static const char *const marks[] = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
                                    "<|repo_name|>",  "<|file_sep|>",   NULL};
enum { PREFIX = 96, SUFFIX, MIDDLE };

/* No tools: the server writes them into the messages. [user]Hi> has 9 tokens. */
static const char template[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
                               "{% if add_generation_prompt %}>{% endif %}";

static served s, filling;

static void with_pages(lt_server_options *o) {
    o->pages_folder = folder;
}

static int start(void **state) {
    char path[LT_PATH_BYTES];
    if (make_folder(state) != 0 || lt_path_join(path, folder, "t.jinja") != LT_OK ||
        lt_file_write_atomic(path, template, sizeof template - 1) != LT_OK) {
        return 1;
    }
    served_start_of(&s, path, letters_alone, with_pages);
    served_start_of(&filling, path, marks, NULL);
    return 0;
}

static int end(void **state) {
    served_end(&s);
    served_end(&filling);
    return remove_folder(state);
}

/* ' stands for ". The caller owns the answer. */
static json_t *ask(const served *of, const char *method, const char *path, const char *body) {
    static char answer[SERVED_REPLY_BYTES];
    json_t *tree = body[0] != '\0' ? served_parse(body) : NULL, *got;
    char *text = tree != NULL ? json_dumps(tree, 0) : strdup("");
    const int status = served_ask(of, method, path, text, answer);
    got = json_loads(answer, 0, NULL);
    if (status != 200 || got == NULL) {
        fail_msg("%s %s %s: %d %s", method, path, body, status, answer);
    }
    free(text);
    json_decref(tree);
    return got;
}

static void says(const char *method, const char *path, const char *body, const char *want) {
    served_check(&s, method, path, body, 200, want);
}

static void refuses(const char *path, const char *body, int status, const char *want) {
    served_check(&s, "POST", path, body, status, want);
}

static void near(double is, double want) {
    if (!(fabs(is - want) <= 1e-5)) {
        fail_msg("%.9g, not %.9g", is, want);
    }
}

/* ---- Embeddings, scores ---- */

enum { WIDTH = 32 };

static void numbers_of(const json_t *list, double x[WIDTH]) {
    double squares = 0;
    assert_int_equal(json_array_size(list), WIDTH);
    for (size_t i = 0; i < WIDTH; i++) {
        x[i] = json_number_value(json_array_get(list, i));
        squares += x[i] * x[i];
    }
    near(squares, 1); /* Normalised. */
}

/* Little-endian float32 in base64, RFC 4648. */
static void decoded(const char *text, double x[WIDTH]) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char bytes[4 * WIDTH + 3];
    size_t n = 0;
    assert_int_equal(strlen(text), (4 * WIDTH + 2) / 3 * 4);
    for (size_t i = 0; text[i] != '\0'; i += 4) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 4; k++) {
            const char *at = strchr(digits, text[i + k]);
            assert_true(at != NULL || (text[i + k] == '=' && text[i + 4] == '\0'));
            bits = bits << 6 | (at != NULL ? (uint32_t)(at - digits) : 0);
        }
        for (int k = 2; k >= 0; k--) {
            bytes[n++] = (unsigned char)(bits >> 8 * k);
        }
    }
    for (size_t i = 0; i < WIDTH; i++) {
        const uint32_t word = (uint32_t)bytes[4 * i] | (uint32_t)bytes[4 * i + 1] << 8 |
                              (uint32_t)bytes[4 * i + 2] << 16 | (uint32_t)bytes[4 * i + 3] << 24;
        float f;
        memcpy(&f, &word, 4);
        x[i] = (double)f;
    }
}

#define TEN "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, "

static void embeddings(void **state) {
    double one[WIDTH], two[WIDTH], again[WIDTH];
    json_t *r, *data;
    (void)state;
    r = ask(&s, "POST", "/v1/embeddings", "{'input': ['abc', 'zz']}");
    data = json_object_get(r, "data");
    assert_int_equal(json_array_size(data), 2);
    numbers_of(json_object_get(json_array_get(data, 0), "embedding"), one);
    numbers_of(json_object_get(json_array_get(data, 1), "embedding"), two);
    json_decref(r);
    r = ask(&s, "POST", "/v1/embeddings", "{'input': 'abc', 'encoding_format': 'base64'}");
    data = json_array_get(json_object_get(r, "data"), 0);
    decoded(json_string_value(json_object_get(data, "embedding")), again);
    json_decref(r);
    for (size_t i = 0; i < WIDTH; i++) {
        near(again[i], one[i]);
    }
    r = ask(&s, "POST", "/api/embed", "{'model': 'letters', 'input': ['abc', 'zz']}");
    data = json_object_get(r, "embeddings");
    assert_int_equal(json_array_size(data), 2);
    numbers_of(json_array_get(data, 1), again);
    assert_true(json_number_value(json_object_get(r, "total_duration")) > 0 &&
                json_number_value(json_object_get(r, "total_duration")) < 600e9);
    json_decref(r);
    for (size_t i = 0; i < WIDTH; i++) {
        near(again[i], two[i]);
    }
    r = ask(&s, "POST", "/api/embeddings", "{'model': 'letters:latest', 'prompt': 'zz'}");
    numbers_of(json_object_get(r, "embedding"), again);
    json_decref(r);
    near(again[3], two[3]);
    says("POST", "/v1/embeddings", "{'input': ['abc', 'zz'], 'dimensions': 32}",
         "{'object': 'list', 'model': 'letters', 'data': [{'object': 'embedding', 'index': 0}, "
         "{'index': 1}], 'usage': {'prompt_tokens': 5, 'total_tokens': 5}}");
    says("POST", "/v1/embeddings", "{'input': [[65, 66], [67]]}", /* Ids. */
         "{'data': ['*', '*'], 'usage': {'prompt_tokens': 3}}");
    says("POST", "/api/embed", "{'model': 'letters', 'input': ['abc', 'zz']}",
         "{'model': 'letters', 'prompt_eval_count': 5, 'load_duration': 0}");
    says("POST", "/v1/embeddings", "{'input': [" TEN TEN TEN TEN TEN TEN TEN "1]}",
         "{'usage': {'prompt_tokens': 71}}");
    refuses("/v1/embeddings", "{'input': 'a', 'encoding_format': 'hex'}", 400,
            "{'error': {'param': 'encoding_format', 'message': '~may be float or base64'}}");
    refuses("/v1/embeddings", "{}", 400, "{'error': {'param': 'input', 'message': '~missing'}}");
    refuses("/v1/embeddings", "{'input': 'a', 'dimensions': 16}", 400,
            "{'error': {'param': 'dimensions', 'message': '~embeddings have 32'}}");
}

/* The cosine of a text with itself is 1, and does not depend on the order of two texts. */
static void scores(void **state) {
    json_t *r, *list;
    double with_other, one[WIDTH], two[WIDTH], sum = 0;
    (void)state;
    r = ask(&s, "POST", "/v1/embeddings", "{'input': ['ab', 'zz']}");
    list = json_object_get(r, "data");
    numbers_of(json_object_get(json_array_get(list, 0), "embedding"), one);
    numbers_of(json_object_get(json_array_get(list, 1), "embedding"), two);
    for (size_t i = 0; i < WIDTH; i++) {
        sum += one[i] * two[i];
    }
    json_decref(r);
    r = ask(&s, "POST", "/score", "{'queries': 'ab', 'documents': ['ab', 'zz']}");
    list = json_object_get(r, "data");
    assert_int_equal(json_array_size(list), 2);
    near(json_number_value(json_object_get(json_array_get(list, 0), "score")), 1);
    with_other = json_number_value(json_object_get(json_array_get(list, 1), "score"));
    near(with_other, sum);
    assert_true(with_other < 0.99);
    json_decref(r);
    r = ask(&s, "POST", "/v1/score", "{'text_1': ['zz', 'ab'], 'text_2': ['ab', 'ab']}");
    list = json_object_get(r, "data");
    near(json_number_value(json_object_get(json_array_get(list, 0), "score")), sum);
    near(json_number_value(json_object_get(json_array_get(list, 1), "score")), 1);
    json_decref(r);
    says("POST", "/score", "{'queries': 'ab', 'documents': ['abc', {'text': 'zz'}]}",
         "{'id': '~score-', 'object': 'list', 'model': 'letters', 'data': [{'index': 0, 'object': "
         "'score'}, {'index': 1}], 'usage': {'prompt_tokens': 7, 'total_tokens': 7}}");
    r = ask(&s, "POST", "/rerank",
            "{'query': 'ab', 'documents': ['zz', 'ab', 'zz'], 'return_documents': true}");
    list = json_object_get(r, "results");
    near(json_number_value(json_object_get(json_array_get(list, 0), "relevance_score")), 1);
    near(json_number_value(json_object_get(json_array_get(list, 2), "relevance_score")), sum);
    json_decref(r);
    says("POST", "/v2/rerank",
         "{'query': 'ab', 'documents': ['zz', 'ab', 'zz'], 'return_documents': true}",
         "{'results': [{'index': 1, 'document': {'text': 'ab'}}, {'index': 0, 'document': {'text': "
         "'zz'}}, {'index': 2}], 'usage': {'prompt_tokens': 8}}");
    says("POST", "/v1/rerank", "{'query': 'ab', 'documents': ['zz', 'ab'], 'top_n': 1}",
         "{'results': [{'#': 3, 'index': 1}]}");
    says("POST", "/v1/rerank",
         "{'query': 'ab', 'documents': ['zz', 'ab'], 'return_documents': false, 'top_n': 9}",
         "{'results': [{'#': 2, 'index': 1}, {'#': 2, 'index': 0}]}");
    refuses("/score", "{'queries': ['a', 'b'], 'documents': ['a', 'b', 'c']}", 400,
            "{'error': {'param': 'queries', 'message': '~2 texts and'}}");
    refuses("/score", "{'queries': [], 'documents': ['a']}", 400,
            "{'error': {'param': 'queries'}}");
    refuses("/score", "{'queries': 'a', 'documents': [1]}", 400,
            "{'error': {'param': 'documents', 'message': '~[0] is not a text'}}");
    refuses("/score", "{'queries': 'a'}", 400, "{'error': {'message': '~is missing'}}");
    refuses("/rerank", "{'query': ['a'], 'documents': ['b']}", 400,
            "{'error': {'param': 'query', 'message': '~must be a text'}}");
    refuses("/classify", "{'input': 'a'}", 400, "{'error': {'message': '~no score head'}}");
}

static void pooling(void **state) {
    double one[WIDTH], two[WIDTH];
    json_t *r;
    (void)state;
    r = ask(&s, "POST", "/pooling", "{'input': 'ab'}");
    numbers_of(json_object_get(json_array_get(json_object_get(r, "data"), 0), "data"), one);
    json_decref(r);
    r = ask(&s, "POST", "/pooling",
            "{'input': 'ab', 'encoding_format': 'base64', 'task': 'embed'}");
    decoded(
        json_string_value(json_object_get(json_array_get(json_object_get(r, "data"), 0), "data")),
        two);
    json_decref(r);
    for (size_t i = 0; i < WIDTH; i++) {
        near(two[i], one[i]);
    }
    says("POST", "/pooling", "{'input': ['ab', 'c']}",
         "{'id': '~pool-', 'data': [{'index': 0, 'object': 'pooling'}, {'index': 1}], 'usage': "
         "{'prompt_tokens': 3}}");
    says("POST", "/pooling", "{'messages': [{'role': 'user', 'content': 'Hi'}]}",
         "{'usage': {'prompt_tokens': 8}}"); /* [user]Hi without the beginning of an answer. */
    says("POST", "/pooling",
         "{'messages': [{'role': 'user', 'content': 'Hi'}], 'add_generation_prompt': true}",
         "{'usage': {'prompt_tokens': 9}}");
    refuses("/pooling", "{'input': 'a', 'task': 'classify'}", 400, "{'error': {'param': 'task'}}");
    refuses("/pooling", "{'input': 'a', 'task': 'x'}", 400, "{'error': {'param': 'task'}}");
    refuses("/pooling", "{'input': 'a', 'dimensions': 31}", 400,
            "{'error': {'param': 'dimensions', 'message': '~is 31; here they are 32'}}");
    refuses("/pooling", "{'input': 'a', 'encoding_format': 'hex'}", 400,
            "{'error': {'param': 'encoding_format'}}");
    refuses("/pooling", "{'input': 'a', 'messages': []}", 400,
            "{'error': {'param': 'input', 'message': '~one of'}}");
    refuses("/pooling", "{}", 400, "{'error': {'param': 'input'}}");
}

/* ---- What the server says ---- */

/* 2 * 96 * 32 of the embedding and the head, 4 * 32 * 32 of attention, 3 * 32 * 32 of the FFN and 3
 * * 32 of norms are 13,408. */
static void models(void **state) {
    (void)state;
    says("GET", "/v1/models", "",
         "{'object': 'list', 'has_more': false, 'first_id': 'letters', 'last_id': 'letters', "
         "'data': "
         "[{'id': 'letters', 'object': 'model', 'max_model_len': 512, 'max_tokens': 512, 'status': "
         "'-', 'meta': {'family': 'llama', 'n_vocab': 96, 'n_ctx_train': 512, 'n_embd': 32, "
         "'n_params': 13408}}]}");
    says("GET", "/v1/models/letters", "", "{'id': 'letters', 'owned_by': 'lateen'}");
    says("GET", "/v1/models/l%65tters", "", "{'id': 'letters'}");
    served_check(&s, "GET", "/v1/models/others", "", 404, "{'error': {'message': '~others'}}");
    says("GET", "/health", "", "{'status': 'ok', '#': 1}");
    says("GET", "/version", "", "{'version': '*', '#': 1}");
    refuses("/models/load", "{'model': 'letters'}", 501,
            "{'error': {'type': 'not_supported_error', 'message': '~/models/load is not supported "
            "here: the server has one model'}}");
    refuses("/models/unload", "{'model': 'letters'}", 501, "{'error': {'message': '~unload'}}");
}

static void ollama(void **state) {
    (void)state;
    says("GET", "/api/version", "", "{'version': '*'}");
    says("GET", "/api/tags", "",
         "{'models': [{'name': 'letters:latest', 'model': 'letters:latest', 'modified_at': '*', "
         "'expires_at': '-', 'details': {'format': 'safetensors', 'family': 'llama', 'families': "
         "['llama'], 'parameter_size': '13.4K', 'parent_model': ''}}]}");
    says("GET", "/api/ps", "",
         "{'models': [{'name': 'letters:latest', 'context_length': 512, 'size_vram': 0, "
         "'expires_at': '~21', 'modified_at': '-'}]}"); /* In a hundred years. */
    says("POST", "/api/show", "{'model': 'letters'}",
         "{'template': '~[{{ m.role }}]', 'details': {'parameter_size': '13.4K'}, 'model_info': "
         "{'general.architecture': 'llama', 'general.basename': 'letters', "
         "'general.parameter_count': 13408, 'llama.context_length': 512, 'llama.embedding_length': "
         "32, 'llama.block_count': 1, 'llama.attention.head_count': 2, 'llama.vocab_size': 96}, "
         "'capabilities': ['completion', 'embedding', 'tools'], 'modified_at': '*'}");
    refuses("/api/show", "{'model': 'other'}", 404, "{'error': '~other'}");
    refuses("/api/pull", "{'model': 'x'}", 501,
            "{'error': '~/api/pull is not supported here: the server has the models that it was "
            "started with'}");
    served_check(&s, "DELETE", "/api/delete", "{'model': 'x'}", 501, "{'error': '~/api/delete'}");
    refuses("/api/embed", "{'model': 'letters'}", 400, "{'error': '~missing'}");
    refuses("/api/embed", "{'model': 'letters', 'input': 'a', 'dimensions': 31}", 400,
            "{'error': '~is 31; this model'}");
}

/* Of the numbers of the status page, those that this test has made. */
static void status(void **state) {
    json_t *before, *after;
    double tokens, requests;
    (void)state;
    before = ask(&s, "GET", "/status.json", "");
    says("POST", "/v1/completions", "{'prompt': 'abcde', 'max_tokens': 4, 'ignore_eos': true}",
         "{'usage': {'completion_tokens': 4}}");
    after = ask(&s, "GET", "/status.json", "");
    tokens = json_number_value(json_object_get(after, "new_tokens")) -
             json_number_value(json_object_get(before, "new_tokens"));
    near(tokens, 4);
    requests = json_number_value(json_object_get(after, "finished")) -
               json_number_value(json_object_get(before, "finished"));
    near(requests, 1);
    requests = json_number_value(json_object_get(after, "http_requests")) -
               json_number_value(json_object_get(before, "http_requests"));
    near(requests, 2); /* With one of the two requests for this page. */
    json_decref(before);
    assert_true(json_number_value(json_object_get(after, "uptime_s")) > 0);
    /* An upper bound of a bucket, from 1 ms to a minute or two. */
    const double p50 = json_number_value(json_object_get(after, "ttft_p50_s")),
                 p99 = json_number_value(json_object_get(after, "ttft_p99_s"));
    assert_true(p50 > 0 && p50 <= p99 && p99 < 200);
    json_decref(after);
    says("GET", "/status.json", "",
         "{'state': 'ready', 'model': 'letters', 'context': 512, 'running': 0, 'waiting': 0, "
         "'max_running': 8, 'requests': 0, 'resident_bytes': '>0', 'descriptors': '>0', "
         "'cache_bytes': '>0', 'page_tokens': '>0'}");
}

/* ---- A gap in a text ---- */

static void filling_in_the_middle(void **state) {
    char body[4096], x600[601];
    (void)state;
    memset(x600, 'x', 600);
    x600[600] = '\0';
    served_check(&filling, "POST", "/v1/completions",
                 "{'prompt': 'ab', 'suffix': 'cd', 'max_tokens': 1, 'return_token_ids': true}", 200,
                 "{'choices': [{'prompt_token_ids': [96, 65, 66, 97, 67, 68, 98]}]}");
    /* <repo>myproject\n <file>filename\n <prefix> ab <suffix> cd <middle> */
    served_check(&filling, "POST", "/infill",
                 "{'input_prefix': 'ab', 'input_suffix': 'cd', 'n_predict': 2}", 200,
                 "{'tokens_evaluated': 28}");
    /* The same, a beginning of the answer, and two files with their names; the second's is tmp. */
    served_check(&filling, "POST", "/infill",
                 "{'input_prefix': 'ab', 'input_suffix': 'cd', 'prompt': 'xyz', 'n_predict': 2, "
                 "'input_extra': [{'filename': 'f.c', 'text': 'int'}, {'text': 'a'}]}",
                 200, "{'tokens_evaluated': 45}");
    /* A context of 512 less an answer of 8 leaves 504: three quarters of it for the prefix, 378,
     * and one less four marks for the suffix, 122; the files have no room. */
    (void)snprintf(body, sizeof body,
                   "{'input_prefix': '%s', 'input_suffix': '%s', 'n_predict': 8}", x600, x600);
    served_check(&filling, "POST", "/infill", body, 200, "{'tokens_evaluated': 503}");
    /* With a suffix of 2 there is room for the 21 of the project's and the file's name. */
    (void)snprintf(body, sizeof body,
                   "{'input_prefix': '%sAB', 'input_suffix': 'CD', 'n_predict': 8}", x600);
    served_check(&filling, "POST", "/infill", body, 200, "{'tokens_evaluated': 404}");
    served_check(&filling, "POST", "/infill",
                 "{'input_prefix': 'a', 'input_suffix': 'b', 'input_extra': [{'filename': 1, "
                 "'text': 'x'}]}",
                 400, "{'error': {'message': '~must be a list of objects'}}");
    served_check(&filling, "POST", "/infill",
                 "{'input_prefix': 'a', 'input_suffix': 'b', 'input_extra': {}}", 400,
                 "{'error': {'message': '~list of at most'}}");
    served_check(&filling, "POST", "/infill", "{'input_prefix': 'a'}", 400,
                 "{'error': {'message': '~input_suffix'}}");
    refuses("/infill", "{'input_prefix': 'a', 'input_suffix': 'b'}", 501,
            "{'error': {'type': 'not_supported_error', 'message': '~(prefix, suffix, middle)'}}");
    refuses("/v1/completions", "{'prompt': 'a', 'suffix': 'b'}", 400,
            "{'error': {'param': 'suffix', 'message': '~no token for filling in the middle'}}");
}

/* ---- Pages in files ---- */

#define X40 "xxxxxxxxxxyyyyyyyyyyzzzzzzzzzzwwwwwwwwww"

/* A text of 40 tokens has two whole pages of 16. */
static void pages_in_files(void **state) {
    static const char *const names[] = {"", ".x", "a/b", "../x"};
    (void)state;
    says("GET", "/status.json", "", "{'page_tokens': 16}");
    says("POST", "/v1/completions", "{'prompt': '" X40 "', 'max_tokens': 1}",
         "{'usage': {'prompt_tokens': 40}}");
    says("POST", "/slots/3?action=save", "{'filename': 'p.bin', 'prompt': '" X40 "'}",
         "{'id_slot': 3, 'filename': 'p.bin', 'n_saved': 32, 'n_written': '>0', 'timings': "
         "{'save_ms': '>0'}}");
    says("POST", "/slots/3?action=erase", "{'prompt': '" X40 "'}",
         "{'id_slot': 3, 'n_erased': 32, 'filename': '-', 'timings': '-'}");
    says("POST", "/slots/0?action=erase", "{'prompt': '" X40 "'}", "{'n_erased': 0}");
    says("POST", "/slots/0?action=restore", "{'filename': 'p.bin'}",
         "{'id_slot': 0, 'n_restored': 32, 'n_read': '>0', 'timings': {'restore_ms': '>0'}}");
    says("POST", "/v1/completions", "{'prompt': '" X40 "', 'max_tokens': 1}",
         "{'usage': {'prompt_tokens': 40, 'prompt_tokens_details': {'cached_tokens': 32}}}");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char body[128];
        (void)snprintf(body, sizeof body, "{'filename': '%s', 'prompt': 'ab'}", names[i]);
        refuses("/slots/0?action=save", body, 400,
                "{'error': {'message': '~is the name of a file in the folder'}}");
    }
    refuses("/slots/0?action=save", "{'prompt': 'ab'}", 400, "{'error': {'message': '~filename'}}");
    refuses("/slots/0?action=save", "{'filename': 'x'}", 400,
            "{'error': {'message': '~must name'}}");
    refuses("/slots/0?action=erase", "{'prompt': 'a', 'messages': []}", 400, "{'error': '*'}");
    refuses("/slots/0?action=move", "{}", 400,
            "{'error': {'message': '~must be save, restore or erase'}}");
    refuses("/slots/x?action=erase", "{'prompt': 'a'}", 400,
            "{'error': {'message': '~the path is /slots/NUMBER'}}");
    refuses("/slots/0?action=restore", "{'filename': 'none'}", 400,
            "{'error': {'message': '~none'}}");
    served_check(&filling, "POST", "/slots/0?action=erase", "{'prompt': 'a'}", 501,
                 "{'error': {'message': '~--slot-save-path'}}");
}

/* ---- Stored answers ---- */

/* Ask for an answer that is stored; the path of it, which is static. */
static const char *stored(const char *path, const char *body) {
    static char where[2][128];
    static int next;
    json_t *r = ask(&s, "POST", path, body);
    char *to = where[next = 1 - next];
    (void)snprintf(to, sizeof where[0], "%s/%s", path, json_string_value(json_object_get(r, "id")));
    json_decref(r);
    return to;
}

static void at(const char *method, const char *path, const char *tail, const char *body, int status,
               const char *want) {
    char where[256];
    (void)snprintf(where, sizeof where, "%s%s", path, tail);
    served_check(&s, method, where, body, status, want);
}

static void stored_chats(void **state) {
    const char *chats = "/v1/chat/completions", *chat;
    char want[256], pairs[512] = "{'metadata': {";
    (void)state;
    chat = stored(chats, "{'messages': [{'role': 'user', 'content': 'Hi'}], 'max_tokens': 1, "
                         "'store': true, 'metadata': {'a': 'b'}}");
    at("POST", chat, "", "{'metadata': {'c': 'd'}}", 200,
       "{'object': 'chat.completion', 'metadata': {'#': 1, 'c': 'd'}}");
    at("GET", chat, "", "", 200, "{'metadata': {'#': 1, 'c': 'd'}}");
    (void)snprintf(want, sizeof want, "{'object': 'list', 'data': [{'id': '%s'}]}",
                   strrchr(chat, '/') + 1);
    at("GET", chats, "?metadata[c]=d", "", 200, want);
    at("GET", chats, "?metadata[c]=d&model=letters", "", 200, want);
    at("GET", chats, "?metadata[a]=b", "", 200, "{'data': []}");
    at("GET", chats, "?model=other", "", 200, "{'data': []}");
    at("GET", chat, "/messages", "", 200,
       "{'object': 'list', 'has_more': false, 'data': [{'id': '~-0', 'role': 'user', 'content': "
       "'Hi', 'content_parts': null}]}");
    at("GET", chat, "/other", "", 404, "{'error': {'code': 'not_found'}}");
    at("POST", chat, "/other", "{'metadata': {}}", 404, "{'error': {'code': 'not_found'}}");
    at("POST", chat, "", "{'metadata': {'a': 1}}", 400, "{'error': {'param': 'metadata'}}");
    at("POST", chat, "", "{'metadata': []}", 400, "{'error': {'param': 'metadata'}}");
    for (int i = 0; i < 17; i++) { /* OpenAI takes 16. */
        (void)snprintf(pairs + strlen(pairs), sizeof pairs - strlen(pairs), "%s'k%d': 'v'",
                       i > 0 ? ", " : "", i);
    }
    (void)snprintf(pairs + strlen(pairs), sizeof pairs - strlen(pairs), "}}");
    at("POST", chat, "", pairs, 400, "{'error': {'message': '~17 members'}}");
    at("GET", chat, "", "", 200, "{'metadata': {'#': 1, 'c': 'd'}}"); /* As it was. */
    at("POST", chat, "", "{'metadata': null}", 200, "{'metadata': {'#': 0}}");
    at("DELETE", chat, "/other", "", 404, "{'error': '*'}");
    at("DELETE", chat, "", "", 200,
       "{'#': 3, 'id': '~chatcmpl', 'object': 'chat.completion.deleted', 'deleted': true}");
    at("DELETE", chat, "", "", 404, "{'error': {'code': 'not_found'}}");
    at("GET", chat, "", "", 404, "{'error': {'message': '~not found'}}");
}

static void stored_responses(void **state) {
    const char *r = stored("/v1/responses", "{'input': 'Hi', 'max_output_tokens': 1}");
    (void)state;
    at("GET", r, "?stream=false", "", 200, "{'object': 'response', 'usage': '*'}");
    at("GET", r, "?stream=true", "", 400, "{'error': {'param': 'stream'}}");
    at("GET", r, "/input_items", "", 200,
       "{'data': [{'role': 'user', 'content': [{'text': 'Hi'}]}]}");
    at("GET", r, "/other", "", 404, "{'error': {'param': 'response_id', 'code': 'not_found'}}");
    at("POST", r, "/cancel", "", 400,
       "{'error': {'message': '~only responses in the background'}}");
    at("POST", r, "/other", "", 404, "{'error': {'code': 'not_found'}}");
    at("POST", "/v1/responses/compact", "", "{}", 404, "{'error': {'message': '~compact'}}");
    at("DELETE", r, "", "", 200, "{'#': 3, 'id': '~resp_', 'deleted': true}");
    at("GET", r, "", "", 404, "{'error': {'message': '~Response with id'}}");
    /* A completion is no response, and an id has at most 63 characters. */
    at("GET", "/v1/responses/", "chatcmpl-1", "", 404, "{'error': {'code': 'not_found'}}");
    at("GET", "/v1/responses/",
       "resp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "",
       404, "{'error': {'code': 'not_found'}}");
}

/* ---- Conversations ---- */

/* The template knows no tools: they are in the system message, a call is in the notation of the
 * answer, and a result is a user's message. */
static void tools_without_a_template(void **state) {
    static const char tool[] = "{'type': 'function', 'function': {'name': 'f', 'parameters': {}}}";
    char body[2048];
    json_t *r;
    const char *prompt, *lead;
    (void)state;
    (void)snprintf(body, sizeof body,
                   "{'tools': [%s, %s], 'messages': [{'role': 'system', 'content': 'S'}, {'role': "
                   "'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'ok', 'tool_calls': "
                   "[{'id': '1', 'type': 'function', 'function': {'name': 'f', 'arguments': "
                   "'{}'}}]}, {'role': 'tool', 'tool_call_id': '1', 'content': '5'}]}",
                   tool, tool);
    r = ask(&s, "POST", "/apply-template", body);
    prompt = json_string_value(json_object_get(r, "prompt"));
    assert_non_null(prompt);
    lead = "[system]S\n\nYou can call functions. To call one, answer with nothing but a JSON "
           "object: {\"name\": NAME, \"arguments\": {...}}. Its result comes in the next message. "
           "The functions, with the JSON schemas of their parameters:\n";
    if (strncmp(prompt, lead, strlen(lead)) != 0) {
        fail_msg("%s", prompt);
    }
    for (int i = 0; i < 2; i++) { /* A line for each function. */
        const char *line = i == 0 ? prompt + strlen(lead) : strchr(prompt + strlen(lead), '\n') + 1;
        json_t *f = json_loadb(line, (size_t)(strchr(line, '\n') - line), 0, NULL);
        assert_string_equal(json_string_value(json_object_get(f, "name")), "f");
        json_decref(f);
    }
    prompt = strstr(prompt, "\n[user]");
    assert_non_null(prompt);
    assert_string_equal(prompt, "\n[user]Hi[assistant]ok\n{\"name\":\"f\",\"arguments\":{}}"
                                "[user]Result of the function: 5>");
    json_decref(r);
    r = ask(&s, "POST", "/apply-template",
            "{'tools': [{'type': 'function', 'function': {'name': 'f'}}], 'messages': [{'role': "
            "'user', 'content': 'Hi'}]}");
    prompt = json_string_value(json_object_get(r, "prompt"));
    assert_true(prompt != NULL && strncmp(prompt, "[system]You can call", 20) == 0);
    json_decref(r);
}

#define H "................................................................................."
#define C "{'role': 'user', 'content': '0123456789" H "123456789'}"
#define D "{'role': 'assistant', 'content': '0123456789" H "123456789'}"

/* Each of four user's messages has 106 tokens, each of three answers 111, the system message 9 and
 * the beginning of the answer 1: 767 of a context of 512. From the second one on there are 550,
 * from the third 333, from the fourth 116. */
static void the_oldest_turns_are_dropped(void **state) {
#define TALK                                                                                       \
    "'truncation': 'auto', 'input': [{'role': 'system', 'content': 'S'}, " C ", " D ", " C ", " D  \
    ", " C ", " D ", " C "]"
    (void)state;
    says("POST", "/v1/responses", "{" TALK ", 'max_output_tokens': 179}",
         "{'usage': {'input_tokens': 333}}");
    says("POST", "/v1/responses", "{" TALK ", 'max_output_tokens': 180}",
         "{'usage': {'input_tokens': 116}}");
    says("POST", "/v1/responses",
         "{'truncation': 'auto', 'max_output_tokens': 2, 'input': [{'role': 'user', 'content': "
         "'Hi'}]}",
         "{'usage': {'input_tokens': 9}}");
    refuses("/v1/responses",
            "{'max_output_tokens': 2, 'input': [" C "," D "," C "," D "," C "," D "]}", 400,
            "{'error': {'code': 'context_length_exceeded'}}");
    refuses(
        "/v1/responses",
        "{'truncation': 'auto', 'max_output_tokens': 2, 'input': [{'role': 'user', 'content': '" H H
            H H H H H "'}]}",
        400, "{'error': {'code': 'context_length_exceeded'}}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings),
        cmocka_unit_test(scores),
        cmocka_unit_test(pooling),
        cmocka_unit_test(models),
        cmocka_unit_test(ollama),
        cmocka_unit_test(status),
        cmocka_unit_test(filling_in_the_middle),
        cmocka_unit_test(pages_in_files),
        cmocka_unit_test(stored_chats),
        cmocka_unit_test(stored_responses),
        cmocka_unit_test(tools_without_a_template),
        cmocka_unit_test(the_oldest_turns_are_dropped),
    };
    return cmocka_run_group_tests(tests, start, end);
}
