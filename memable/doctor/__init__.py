"""`memable doctor`: looks at a server and a namespace for what is wrong, says what to do, and mends what is safe.

A check is a function that asks one question (`registry.py` lists them all); what it finds has a severity, a meaning and
an advice. Nothing is changed unless it is told to, and then by the scripts that workers use.
"""

from memable.doctor.examination import Diagnosis, Mended, examine, mend, worst
from memable.doctor.findings import Finding, Mend, Severity
from memable.doctor.patient import Patient, visiting
from memable.doctor.registry import CHECKS, Check

__all__ = [
    "CHECKS",
    "Check",
    "Diagnosis",
    "Finding",
    "Mend",
    "Mended",
    "Patient",
    "Severity",
    "examine",
    "mend",
    "visiting",
    "worst",
]
