"""Caption Lab in the browser: python app.py [--profile embedded|hub] [--models FILE] [--host H] [--port P] [--device
D]
"""

from captioners.ui.serve import main

if __name__ == "__main__":
    main()
