import sys

from components.command import main
from components.verify_precision.step import verify_precision

if __name__ == "__main__":
    sys.exit(main(verify_precision))
