import { token } from '../../test/support/tokens.ts'

/** What a store is filled with; ids continue from one user to the next. */
export interface Filling {
  readonly users: number
  readonly plants: number
}

/** Tokens outlive the benchmark. */
const EXP = Math.floor(Date.now() / 1000) + 86_400
const tokens: string[] = []

/** The plants that the stores are filled with; three of four have a tag. */
export function plant(index: number): { readonly name: string; readonly tag?: string } {
  const name = `Monstera ${String(index).padStart(7, '0')}`
  return index % 4 === 3 ? { name } : { name, tag: 'indoor' }
}

/** The body of a list. */
export function page(from: number, count: number): string {
  return JSON.stringify(Array.from({ length: count }, (_, i) => plant(from + i)))
}

export function user(index: number): string {
  return `user-${String(index).padStart(4, '0')}`
}

export function tokenOf(index: number): string {
  return (tokens[index] ??= token(user(index), { exp: EXP }))
}

/** The first id that is POSTed: all have as many digits, so that all bodies have one length. */
export const FIRST_POSTED = 1_000_000_000

/** The body of a POST, and of its answer. */
export function newPlant(id: number): string {
  return `{"name":"Monstera ${id}","id":${id},"tag":"indoor"}`
}
export const created = `{"name":"Monstera ${FIRST_POSTED}","tag":"indoor"}`
