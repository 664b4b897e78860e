/* render_template.c: render chat templates. Each line of standard input is {"template": TEXT,
 * "context": {...}}, each line of standard output {"text": ...} or {"error": ...}.
 * tools/check_templates.py compares the texts with those of transformers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/chat_template.h"

static json_t *answer(const json_t *line) {
    const json_t *text = json_object_get(line, "template");
    const json_t *context = json_object_get(line, "context");
    lt_chat_template *t = NULL;
    char *out = NULL;
    size_t bytes = 0;
    json_t *reply;

    if (json_is_string(text) &&
        lt_chat_template_open(&t, json_string_value(text), json_string_length(text), "template") ==
            LT_OK &&
        lt_chat_template_render(t, context, &out, &bytes) == LT_OK) {
        reply = json_pack("{s:s%}", "text", out, bytes);
    } else {
        reply = json_pack("{s:s}", "error", lt_error_message());
    }
    free(out);
    lt_chat_template_close(t);
    return reply;
}

int main(void) {
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    while ((n = getline(&line, &room, stdin)) > 0) {
        json_t *j = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        json_t *reply = answer(j);
        char *text = reply != NULL ? json_dumps(reply, JSON_COMPACT) : NULL;
        puts(text != NULL ? text : "{\"error\": \"the reply is not UTF-8\"}");
        free(text);
        json_decref(reply);
        json_decref(j);
    }
    free(line);
    return 0;
}
