/* Answers of S3: lists as Amazon's reference prints them, errors, dates, and invalid XML. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "platform/copy/s3.h"
#include "platform/copy/xml.h"

static struct {
    char text[512];
    int n;
} seen;

static lt_err found(void *ctx, const char *key, int64_t size_bytes, double modified_s) {
    const size_t used = strlen(seen.text);
    (void)ctx;
    (void)snprintf(seen.text + used, sizeof seen.text - used, "%s %lld %.3f\n", key,
                   (long long)size_bytes, modified_s);
    seen.n++;
    return LT_OK;
}

static lt_err page(const char *xml, char next[LT_S3_UPLOAD_BYTES]) {
    seen.text[0] = '\0';
    seen.n = 0;
    return lt_s3_list_page(xml, strlen(xml), found, NULL, next);
}

/* docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html, its first sample. */
static const char sample[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
    "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n"
    "    <Name>bucket</Name>\n    <Prefix/>\n    <KeyCount>205</KeyCount>\n"
    "    <MaxKeys>1000</MaxKeys>\n    <IsTruncated>false</IsTruncated>\n    <Contents>\n"
    "        <Key>my-image.jpg</Key>\n"
    "        <LastModified>2009-10-12T17:50:30.000Z</LastModified>\n"
    "        <ETag>\"fba9dede5f27731c9771645a39863328\"</ETag>\n"
    "        <Size>434234</Size>\n        <StorageClass>STANDARD</StorageClass>\n"
    "    </Contents>\n</ListBucketResult>";

static void lists(void **state) {
    char next[LT_S3_UPLOAD_BYTES];
    (void)state;
    assert_int_equal(page(sample, next), LT_OK);
    assert_string_equal(seen.text, "my-image.jpg 434234 1255369830.000\n");
    assert_string_equal(next, "");
    assert_int_equal(page("<L><Contents><Key>a&amp;&#x65E5;&#228;+%</Key><Size>0</Size></Contents>"
                          "<Contents><Size>7</Size><Owner><Key>no</Key></Owner><Key>b</Key>"
                          "</Contents><IsTruncated>true</IsTruncated>"
                          "<NextContinuationToken>t/+=</NextContinuationToken></L>",
                          next),
                     LT_OK);
    assert_string_equal(seen.text, "a&日ä+% 0 0.000\nb 7 0.000\n");
    assert_string_equal(next, "t/+=");
    assert_int_equal(page("<L><Contents><Key>a%2Fb+c%25</Key><Size>1</Size></Contents>"
                          "<EncodingType>url</EncodingType></L>",
                          next),
                     LT_OK);
    assert_string_equal(seen.text, "a/b c% 1 0.000\n");
    /* The first and last characters next to those that XML does not allow. */
    assert_int_equal(page("<L><Contents><Key>&#x1;&#xD7ff;&#xE000;&#x10FFFF;&#65;</Key>"
                          "<Size>1</Size></Contents></L>",
                          next),
                     LT_OK);
    assert_string_equal(seen.text, "\x01\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"
                                   "A 1 0.000\n");
    assert_int_equal(page("<L/>", next), LT_OK);
    assert_int_equal(seen.n, 0);
}

static void invalid_lists_are_refused(void **state) {
    static const char *const rows[] = {
        "<L><Contents><Size>1</Size></Contents></L>", /* No key. */
        "<L><Contents><Key>a</Key></Contents></L>",   /* No size. */
        "<L><Contents><Key>a</Key><Size>-1</Size></Contents></L>",
        "<L><Contents><Key>a</Key><Size>1x</Size></Contents></L>",
        "<L><Contents><Key>a</Key><Size>99999999999999999999</Size></Contents></L>",
        "<L><Contents><Key>a%2</Key><Size>1</Size></Contents><EncodingType>url</EncodingType></L>",
        "<L><IsTruncated>true</IsTruncated></L>", /* There is no token to continue with. */
        "<L><Contents>",
        "<L></M>",
        "</L>",
        "<L>&nbsp;</L>",
        "<L>&#0;</L>",
        "<L>&#xD800;</L>",
        "<L>&#-5;</L>",
        "<L>&#+65;</L>",
        "<L>&# 65;</L>",
        "<L>&#x0x41;</L>",
        "<L>&#6a;</L>",
        "<L>&#xg;</L>",
        "<L>&#;</L>",
        "<L>&#x;</L>",
        "<L>&#x110000;</L>",
        "<L>&#xDFFF;</L>",
        "<!DOCTYPE L><L/>",
        "<L a='>'",
        "<L><!-- ",
        "<>",
        "<a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a>",
    };
    char next[LT_S3_UPLOAD_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (page(rows[i], next) == LT_OK) {
            fail_msg("%s is accepted", rows[i]);
        }
    }
}

static void errors(void **state) {
    static const char xml[] = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>The "
                              "resource &lt;x&gt; you requested does not exist</Message>"
                              "<Resource>/mybucket/myfoto.jpg</Resource></Error>";
    char code[64], message[256];
    (void)state;
    lt_s3_error(xml, strlen(xml), code, message);
    assert_string_equal(code, "NoSuchKey");
    assert_string_equal(message, "The resource <x> you requested does not exist");
    lt_s3_error("<Result><Code>No</Code></Result>", 32, code, message);
    assert_string_equal(code, "");
    lt_s3_error("<html><body>502 Bad Gateway", 27, code, message);
    assert_string_equal(code, "");
    lt_s3_error(NULL, 0, code, message);
    assert_string_equal(code, "");
}

/* Dates of RFC 9110 and ISO 8601. */
static void dates(void **state) {
    (void)state;
    assert_true(lt_s3_time("Sun, 06 Nov 1994 08:49:37 GMT") == 784111777.0);
    assert_true(lt_s3_time("1994-11-06T08:49:37.250Z") == 784111777.25);
    assert_true(lt_s3_time("1994-11-06T08:49:37Z") == 784111777.0);
    assert_true(lt_s3_time("yesterday") == 0.0);
    assert_true(lt_s3_time("1994-11-06T08:49:37+02:00") == 0.0);
}

/* Prefixes of namespaces, attributes with '>', empty elements, comments. */
static void elements(void **state) {
    static const char xml[] = "<a:x q='>' r=\"/>\"><y z=\"'\"/>t<!-- & -->u</a:x >";
    static const struct {
        lt_xml_kind kind;
        const char *name, *value;
    } rows[] = {{LT_XML_OPEN, "x", ""},
                {LT_XML_OPEN, "y", ""},
                {LT_XML_CLOSE, "y", ""},
                {LT_XML_CLOSE, "x", "u"},
                {LT_XML_END, NULL, NULL}};
    lt_xml x;
    lt_xml_kind kind;
    (void)state;
    lt_xml_begin(&x, xml, strlen(xml));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(lt_xml_next(&x, &kind), LT_OK);
        assert_int_equal(kind, rows[i].kind);
        if (rows[i].name != NULL) {
            assert_string_equal(x.name, rows[i].name);
            assert_string_equal(x.value, rows[i].value);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists),    cmocka_unit_test(invalid_lists_are_refused),
        cmocka_unit_test(errors),   cmocka_unit_test(dates),
        cmocka_unit_test(elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
