/* batch_line.h: the lines of a batch's input and of its two results.
 *
 *     input   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
 *     output  {"id": "batch_req_ID_LINE", "custom_id": "a",
 *              "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}
 *     error   the same with another status_code; or with response null and
 *             error {"code": "...", "message": "...", "line": LINE}
 *
 * LINE counts the lines of the input from 1. It stands in the id of each result, first in its line,
 * so that a results file says by itself which lines were answered. */
#ifndef LT_SERVE_BATCH_LINE_H
#define LT_SERVE_BATCH_LINE_H

#include "serve/api/api_params.h"
#include "serve/api/json_out.h"

/* The endpoint of that path, if it is allowed in a batch; else NULL. It remains valid. */
const char *lt_batch_endpoint_find(const char *path);

typedef struct {
    json_t *root;          /* Tree of the line; the others point into it. */
    const char *custom_id; /* NULL: the line has no readable one. */
    const json_t *body;
    const char *code; /* Error code; NULL: none. */
    char message[600];
} lt_batch_line;

/* Read a line for the endpoint. False: code and message say what is wrong with it. Free it in both
 * cases. */
bool lt_batch_line_read(lt_batch_line *out, const char *text, size_t n, const char *endpoint);
void lt_batch_line_free(lt_batch_line *l);

/* Whether a line has only spaces, tabs and CR, and thus no request. */
bool lt_batch_line_is_blank(const char *text, size_t n);

/* The number of the input's line that a line of results answers, for the batch "batch_ID"; 0: it is
 * incomplete, or of another batch. */
int64_t lt_batch_result_line(const char *text, size_t n, const char *batch_id);

/* Append a line of results with its line end. body: a JSON text. extra: the answer's headers, the
 * first of which has the request's id. */
void lt_batch_put_answer(lt_json_out *o, const char *batch_id, int64_t line, const char *custom_id,
                         int status, const char *extra, const char *body, size_t n);
void lt_batch_put_error(lt_json_out *o, const char *batch_id, int64_t line, const char *custom_id,
                        const char *code, const char *message);

#endif
