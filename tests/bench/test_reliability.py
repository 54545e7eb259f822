"""Properties that campaigns recorded become rows, added up over the tests of one kind."""

from collections import Counter

from benchmarks.reliability import BY_KIND, BY_MACHINE, campaign_rows, odd_rows, properties_of

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


def test_kills_on_an_odd_machine_are_rows_by_kind_of_run_and_by_machine():
    found = Counter(
        {
            ("test_killed[TGN]", "kills"): 3,
            ("test_killed[TGAT]", "kills"): 2,
            ("test_killed[TGN]", "kills, full"): 3,
            ("test_killed[TGAT]", "kills, full"): 1,
            ("test_killed[TGAT]", "second runs"): 1,
        }
    )
    rows = odd_rows(found, 5)
    kills = [(row.params["of"], row.value, row.target) for row in rows if row.name == BY_KIND]
    assert kills == [("TGN", 3, None), ("TGAT", 2, None), ("all", 5, 5)]
    met = {tuple(row.params.values()): row.value for row in rows if row.name == BY_MACHINE}
    assert met["killed", "a disk that is full now and then"] == 4
    assert met["a second run refused", "any"] == 1
    assert sum(met.values()) == 5
