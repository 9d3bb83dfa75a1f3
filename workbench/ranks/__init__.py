"""Processes of ranks, of all methods: started, watched and ended, and whose failure is the cause.

launcher.py starts and ends them, process.py is one of them, watchdog.py finds the one that hangs,
and failures.py the one that failed first. What a rank computes and keeps is runtime/.
"""
