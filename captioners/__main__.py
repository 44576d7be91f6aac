"""`python -m captioners …`"""

import sys

from captioners.cli import main

sys.exit(main())
