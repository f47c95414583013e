/* Undefines what each_isa.h has defined for one instruction set. */
#undef ISA
#undef LANES
#undef Vec
#undef Int
#undef VFMA
#undef VMAX
#undef VSET1
