import sys

from components.command import main
from components.generate_report.step import generate_report

if __name__ == "__main__":
    sys.exit(main(generate_report))
