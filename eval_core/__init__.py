"""Concord: evaluate a language model on one process or a thousand, and return the same number.

The way of the data is the order of the modules, and of the imports::

    spec -> tasks -> plan -> work -> reduce -> verify -> report

`work` is the only part that imports torch.
"""

__version__ = "0.1.0"
