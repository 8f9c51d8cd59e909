"""What each operator takes and gives back, and each segment made of them: file by file as `nn.ops` and `nn`. Pure.

A function has the name of the operator that it describes, and takes its sizes. It gives a tape where a segment calls
that operator, and bytes of workspace where another operator does. What dies only as a segment ends is not said.
"""
