// How the search of the site ranks its results: Sphinx's own scores, with a parameter above all others if the query is
// its name, and higher the fewer characters its name has beyond the query.
var Scorer = {
  score: ([, title, anchor, , score]) => {
    const query = (new URLSearchParams(location.search).get("q") ?? "").trim().toLowerCase().replaceAll("-", "_");
    return anchor === `#${title}` && title.toLowerCase().includes(query) ? score + 20 + query.length / title.length : score;
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
