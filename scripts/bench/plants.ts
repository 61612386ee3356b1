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

/** The first id that is POSTed: all have as many digits, so that all answers have one length. */
export const FIRST_POSTED = 1_000_000_000

/** The body of a POST, and of its answer. */
export function newPlant(id: number): string {
  return `{"name":"Monstera ${id}","id":${id},"tag":"indoor"}`
}
export const created = `{"name":"Monstera ${FIRST_POSTED}","tag":"indoor"}`
