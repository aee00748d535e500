"""Phase 2: which chain serves this request, or why none does now."""

from scheduler.selection.admission import Admission, Verdict, admit
from scheduler.selection.candidates import Candidate, Query
from scheduler.selection.shortest import Choice, select_route

__all__ = ["Admission", "Candidate", "Choice", "Query", "Verdict", "admit", "select_route"]
