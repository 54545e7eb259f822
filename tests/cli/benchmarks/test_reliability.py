"""Properties recorded by kill campaigns become rows, summed by kind."""

from collections import Counter

from benchmarks.reliability import campaign_rows, odd_rows, properties_of

REPORT = """<testsuites><testsuite>
<testcase name="test_killed_over_kafka"><properties>
<property name="kills" value="50"/></properties></testcase>
<testcase name="test_scores_are_written_exactly_once[parquet-task0]"><properties>
<property name="kills" value="12"/></properties></testcase>
<testcase name="test_scores_are_written_exactly_once[csv-task1]"><properties>
<property name="kills" value="11"/></properties></testcase>
<testcase name="test_every_crash_state_of_recovery_is_recovered"/>
</testsuite></testsuites>"""


def test_properties_are_summed_by_kind(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    rows = list(campaign_rows(properties_of(report)))
    assert [(row.params, row.value, row.target) for row in rows] == [
        ({"over": "Kafka"}, 50, 50),
        ({"over": "a file"}, 23, None),
    ]
    found = Counter({("test_killed[TGN]", "kills"): 3, ("test_killed[TGAT]", "kills"): 2})
    kills = [(row.params["of"], row.value, row.target) for row in odd_rows(found, 5)]
    assert kills == [("TGN", 3, None), ("TGAT", 2, None), ("all", 5, 5)]
