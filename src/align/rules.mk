$(OUT)/src/align/experiment_page.o: src/train/report_head.html src/align/experiment.html
