/* The text of a model, through every checker of IFEval and the filters of GSM8K: what passes the
 * strict check also passes the loose one. */
#include <jansson.h>
#include <stdlib.h>

#include "base/error.h"
#include "data/check/gsm8k.h"
#include "data/check/ifeval.h"
#include "data/text_utf8.h"

static const char arguments_text[] =
    "{\"keywords\":[\"a\",\"b.\"],\"keyword\":\"a\",\"frequency\":2,\"relation\":\"at least\","
    "\"forbidden_words\":[\"x\"],\"letter\":\"e\",\"let_frequency\":3,\"let_relation\":\"less "
    "than\","
    "\"num_words\":5,\"num_paragraphs\":2,\"nth_paragraph\":1,\"first_word\":\"a\","
    "\"num_placeholders\":1,\"postscript_marker\":\"P.S.\",\"num_bullets\":2,\"num_highlights\":2,"
    "\"section_spliter\":\"Section\",\"num_sections\":2,\"prompt_to_repeat\":\"a b\","
    "\"end_phrase\":\"z.\"}";
static const char *const ids[] = {
    "keywords:existence",
    "keywords:frequency",
    "keywords:forbidden_words",
    "keywords:letter_frequency",
    "length_constraints:number_paragraphs",
    "length_constraints:number_words",
    "length_constraints:nth_paragraph_first_word",
    "detectable_content:number_placeholders",
    "detectable_content:postscript",
    "detectable_format:number_bullet_lists",
    "detectable_format:constrained_response",
    "detectable_format:number_highlighted_sections",
    "detectable_format:multiple_sections",
    "detectable_format:json_format",
    "detectable_format:title",
    "combination:two_responses",
    "combination:repeat_prompt",
    "startend:end_checker",
    "startend:quotation",
    "punctuation:no_comma",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *arguments;
    char *text = malloc(3 * size + 1);
    const size_t n = lt_utf8_replace_invalid(text, (const char *)data, size);

    if (arguments == NULL) {
        arguments = json_loads(arguments_text, 0, NULL);
        LT_ASSERT(arguments != NULL);
    }
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        lt_ifeval_verdict v;
        const lt_err err = lt_ifeval_check(&v, ids[i], arguments, text, n, NULL);
        LT_ASSERT(err == LT_OK || err == LT_ERR_LIMIT);
        LT_ASSERT(err != LT_OK || v.strict != LT_IFEVAL_YES || v.loose == LT_IFEVAL_YES);
    }
    for (int f = 0; f < LT_GSM8K_FILTERS; f++) {
        (void)lt_gsm8k_right((lt_gsm8k_filter)f, text, n, "#### 1,000.", 11);
    }
    free(text);
    return 0;
}
