"""The execution safety loop: agents report steps before they execute them. Reports are evaluated
and compared with the actual calls. Only a person, outside of the model's reach, can unblock a
blocked agent.
"""
