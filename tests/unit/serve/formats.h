/* formats.h: for tests of the API's formats, a server (served.h) whose answers are known: a bias
 * or a grammar leaves one text, each character is a token, and the template's text can be counted
 * by hand. Include it after cmocka.h. */
#ifndef TESTS_FORMATS_H
#define TESTS_FORMATS_H

#include "unit/serve/served.h"

/* [user]Hi> has 9 tokens. The comment makes the marks of calls and of thinking known. */
static const char template[] =
    "{# <tool_call> <think></think> #}{% if boom %}{{ raise_exception(boom) }}{% endif %}{% for t "
    "in tools or [] %}#{{ t.function.name }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}({{ m.reasoning_content }})"
    "{% endif %}{{ m.content if not quiet }}{% for c in m.tool_calls or [] %}!{{ c.function.name "
    "}}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}>{% endif %}{% if think or enable_thinking "
    "%}<think>{% endif %}";

static served s;
static char path[] = "/tmp/test_formats_XXXXXX";

static inline int start(void **state) {
    const int fd = mkstemp(path);
    (void)state;
    if (fd < 0 || write(fd, template, sizeof template - 1) != sizeof template - 1) {
        return 1;
    }
    close(fd);
    served_start(&s, path, false);
    return 0;
}

static inline int end(void **state) {
    (void)state;
    served_end(&s);
    return unlink(path);
}

typedef struct {
    const char *path, *body;
    int status;
    const char *want;
} row;

static inline void check(const row *rows, size_t n) {
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
#define TOOLS                                                                                      \
    "'tools': [{'type': 'function', 'function': {'name': 'f', 'parameters': {'type': 'object', "   \
    "'properties': {'x': {'const': 1}}, 'required': ['x'], 'additionalProperties': false}}}]"
#define CALL  "'thinking_budget': 0, 'temperature': 0"
#define THINK "'chat_template_kwargs': {'think': true}, 'thinking_budget': 2, "

#endif
