import sys

from components.command import main
from components.evaluate.step import evaluate

if __name__ == "__main__":
    sys.exit(main(evaluate))
