"""What campaigns recorded becomes rows: added up over the tests of one kind, and nothing else."""

from benchmarks.reliability import campaign_rows, properties_of

REPORT = """<testsuites><testsuite>
<testcase name="test_killed_over_kafka"><properties>
<property name="kills" value="50"/></properties></testcase>
<testcase name="test_killed_over_a_file[more0]"><properties>
<property name="kills" value="12"/></properties></testcase>
<testcase name="test_killed_over_a_file[more1]"><properties>
<property name="kills" value="11"/></properties></testcase>
<testcase name="test_every_crash_state_of_recovery_is_recovered"/>
</testsuite></testsuites>"""


def test_properties_are_added_up_by_kind(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    rows = list(campaign_rows(properties_of(report)))
    assert [(row.params, row.value, row.target) for row in rows] == [
        ({"over": "Kafka"}, 50, 50),
        ({"over": "a file"}, 23, None),
    ]
