/* Undefines what each_isa.h has defined for one instruction set. */
#undef ISA
#undef ISA_NAME
#undef LANES
#undef Vec
#undef Int
#undef VFMA
#undef VMAX
#undef VMIN
#undef VSET1
