$(OUT)/src/align/unit_tests.o: src/align/unit_tests.py
$(OUT)/src/align/experiment_page.o: src/train/report/report_head.html src/align/experiment.html
